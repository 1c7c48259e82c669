#pragma once

#include "device/cuda/kernels/attention_exact.cuh"

/// The 16-bit family of attention: what a warp does with 16 rows of queries and one span of keys, through mma. Decode and prefill are built
/// from these, so their bits are equal. Beside docs/numerics.md N5: queries are rounded to the type of the output, keys and values too
/// where the cache has another; scores are taken to base 2, score * (scale * log2(e)); p is rounded to 16 bits, and it is the rounded ones
/// that l is the sum of. Spans are merged ascending within groups of kGroupSpans at absolute positions, and groups ascending.
///
/// Matrices in shared memory have rows of kDim 16-bit elements (kDim is 64, 128 or 256; head_dim is at most that). The 16-byte chunk c of
/// row r stands at place c ^ (r % 8): eight rows of one chunk, which is what ldmatrix reads at a time, are in different banks.
namespace lockstep::device::cuda {

constexpr unsigned kGroupSpans = 4;
constexpr unsigned kGroup = kGroupSpans * kSpan;

template <unsigned kDim>
__device__ inline unsigned swizzled(unsigned row, unsigned chunk) {
  return row * kDim + ((chunk ^ (row % 8)) * 8);
}

__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __nv_bfloat16*) {
  mma_bf16_16816(d, a, b0, b1);
}
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const __half*) {
  mma_f16_16816(d, a, b0, b1);
}

template <class Element>
__device__ inline uint4 pack_eight(const float (&v)[8]) {
  return make_uint4(pack_two<Element>(v[0], v[1]), pack_two<Element>(v[2], v[3]), pack_two<Element>(v[4], v[5]),
                    pack_two<Element>(v[6], v[7]));
}

/// The block puts `rows` queries of the tile into shared memory, rounded; zeros behind the tile's rows and behind head_dim.
template <class Element, unsigned kDim>
__device__ inline void load_queries(const AttentionArguments& arguments, const Tile& tile, unsigned rows, Element* queries) {
  const unsigned head_dim = arguments.heads.head_dim, chunks = (head_dim + 15) / 16 * 2;
  const bool aligned = head_dim % 8 == 0;  // and so every head of every row is
  for (unsigned i = threadIdx.x; i < rows * chunks; i += kAttentionThreads) {
    const unsigned row = i / chunks, chunk = i % chunks, dim = chunk * 8;
    float values[8] = {};
    if (row < tile.num_rows && dim < head_dim) {
      const float* from =
          arguments.qkv + (tile.sequence.first_token + tile.token_of(row)) * arguments.qkv_stride + tile.head_of(row) * head_dim + dim;
      if (aligned) {
        expand_16(load_16(from), from, values);
        expand_16(load_16(from + 4), from, values + 4);
      } else {
#pragma unroll
        for (unsigned j = 0; j < 8; ++j) values[j] = dim + j < head_dim ? from[j] : 0.0f;
      }
    }
    store_16(queries + swizzled<kDim>(row, chunk), pack_eight<Element>(values));
  }
}

/// Eight elements of a slot, from `dim` on, in another type than they are stored in. `vectors` is where the keys, or values, of the block
/// are.
template <class Element, class Stored>
__device__ inline uint4 convert_eight(const CacheView& cache, const std::byte* vectors, unsigned slot, unsigned dim, const Stored* type) {
  const std::byte* from = vectors + static_cast<std::size_t>(slot) * cache.vector_bytes + sizeof(Stored) * dim;
  float values[8] = {};
  if constexpr (is_eight_bits<Stored>) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    const float scale = cache.scales(vectors)[slot];
    expand_four(raw.x, scale, type, values);
    expand_four(raw.y, scale, type, values + 4);
  } else {
    expand_16(load_16(from), type, values);
    if constexpr (sizeof(Stored) == 4) {
      if (4 * (dim + 4) < cache.vector_bytes) expand_16(load_16(from + 16), type, values + 4);
    }
  }
  return pack_eight<Element>(values);
}

/// Calls load(place, vectors, slot, dim, valid) for each 8 elements of a span that the thread has to load into `to`. Not valid: of a key
/// that no row of the tile sees, or behind head_dim.
template <class Element, unsigned kDim, int kUnroll, class Load>
__device__ inline void for_places_of_span(const CacheView& cache, const Tile& tile, unsigned span, std::size_t offset, Element* to,
                                          const Load& load) {
  constexpr unsigned kChunks = kDim / 8, kRowsAtOnce = kAttentionThreads / kChunks;
  const unsigned chunk = threadIdx.x % kChunks, dim = chunk * 8;
  if (chunk >= (cache.head_dim + 15) / 16 * 2) return;
#pragma unroll kUnroll
  for (unsigned first = 0; first < kSpan; first += 16) {  // a block of the cache has a multiple of 16 tokens
    const unsigned first_key = span * kSpan + first, first_slot = first_key % cache.block_size;
    const std::byte* vectors = cache.data;
    if (first_key < tile.keys.end && first_key + 16 > tile.keys.begin) {
      vectors = cache.keys(tile.block_table[first_key / cache.block_size], tile.kv_head) + offset;
    }
#pragma unroll
    for (unsigned i = 0; i < 16; i += kRowsAtOnce) {
      const unsigned row = i + threadIdx.x / kChunks, key = first_key + row;
      const bool valid = key >= tile.keys.begin && key < tile.keys.end && dim < cache.head_dim;
      load(to + swizzled<kDim>(first + row, chunk), vectors, first_slot + row, dim, valid);
    }
  }
}

/// The block begins to put the keys, or the values, of a span into shared memory: 64 rows. Zeros for what no row of the tile sees (those
/// slots may hold anything, and 0 * NaN is NaN) and behind head_dim. kAsync: the cache is of type Element, and the caller commits and
/// waits.
template <class Element, unsigned kDim, bool kAsync>
__device__ inline void load_span(const CacheView& cache, const Tile& tile, unsigned span, std::size_t offset, Element* to) {
  if constexpr (kAsync) {
    const auto copy = [&](Element* place, const std::byte* vectors, unsigned slot, unsigned dim, bool valid) {
      const std::byte* vector = vectors + static_cast<std::size_t>(slot) * cache.vector_bytes;
      cp_async_16_or_zero(place, vector + 2 * dim, valid);
    };
    for_places_of_span<Element, kDim, 4>(cache, tile, span, offset, to, copy);
  } else {
    const auto load_from = [&](auto* type) {
      const auto expand = [&](Element* place, const std::byte* vectors, unsigned slot, unsigned dim, bool valid) {
        store_16(place, valid ? convert_eight<Element>(cache, vectors, slot, dim, type) : make_uint4(0, 0, 0, 0));
      };
      for_places_of_span<Element, kDim, 1>(cache, tile, span, offset, to, expand);
    };
    switch (cache.type) {
      case CacheType::kFloat32: return load_from(static_cast<const float*>(nullptr));
      case CacheType::kFloat16: return load_from(static_cast<const __half*>(nullptr));
      case CacheType::kBFloat16: return load_from(static_cast<const __nv_bfloat16*>(nullptr));
      case CacheType::kFloat8: return load_from(static_cast<const Float8*>(nullptr));
      case CacheType::kInt8: return load_from(static_cast<const Int8*>(nullptr));
    }
  }
}

/// What a lane holds of the results of a span for its two rows, lane / 4 and lane / 4 + 8: p as the A operands of four products over 16
/// keys.
struct Softened {
  unsigned p[kSpan / 16][4];
  float m[2];
  float l[2];
};

/// Scores of 16 rows against the keys of a span: eight tiles of 16 x 8, products over head_dim ascending, 16 at a time.
template <class Element, unsigned kDim>
__device__ inline void score_span(const Element* queries, const Element* keys, unsigned dim_tiles, float (&scores)[kSpan / 8][4]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned i = 0; i < kSpan / 8; ++i) {
    for (unsigned j = 0; j < 4; ++j) scores[i][j] = 0.0f;
  }
#pragma unroll 4
  for (unsigned tile = 0; tile < dim_tiles; ++tile) {
    unsigned a[4];
    ldmatrix_x4(a, queries + swizzled<kDim>(lane % 16, 2 * tile + lane / 16));
#pragma unroll
    for (unsigned i = 0; i < kSpan / 16; ++i) {
      unsigned b[4];
      ldmatrix_x4(b, keys + swizzled<kDim>(16 * i + lane % 8 + lane / 16 * 8, 2 * tile + lane / 8 % 2));
      multiply(scores[2 * i], a, b[0], b[1], queries);
      multiply(scores[2 * i + 1], a, b[2], b[3], queries);
    }
  }
}

/// Scales the scores of a span, and bends them; `first_row` of the tile is the first row of the scores.
__device__ inline void bend_span(float (&scores)[kSpan / 8][4], unsigned first_key, const Tile& tile, unsigned first_row, float scale,
                                 const ScoreBend& bend) {
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = first_row + threadIdx.x % 32 / 4 + 8 * half;
    const unsigned head = row < tile.num_rows ? tile.head_of(row) : tile.first_head;
#pragma unroll
    for (unsigned i = 0; i < kSpan / 8; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned key = first_key + 8 * i + 2 * (threadIdx.x % 4) + j;
        scores[i][2 * half + j] = bend_score(bend, head, key, scores[i][2 * half + j] * scale);
      }
    }
  }
}

/// Scores to p, m and l. A key that a row does not see has p = 0; a row that sees none has l = 0.
template <class Element>
__device__ inline Softened soften_span(float (&scores)[kSpan / 8][4], unsigned first_key, const KeyRange (&ranges)[2], float factor) {
  Softened softened;
  const Element* type = nullptr;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    float largest = -INFINITY;
#pragma unroll
    for (unsigned i = 0; i < kSpan / 8; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned key = first_key + 8 * i + 2 * (threadIdx.x % 4) + j;
        const bool seen = key >= ranges[half].begin && key < ranges[half].end;
        const float score = seen ? scores[i][2 * half + j] * factor : -INFINITY;
        scores[i][2 * half + j] = score;
        largest = score > largest ? score : largest;
      }
    }
    for (int apart = 1; apart < 4; apart *= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, largest, apart);
      largest = other > largest ? other : largest;
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
    float sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < kSpan / 8; ++i) {
      const float first = exp2_of(scores[i][2 * half] - base), second = exp2_of(scores[i][2 * half + 1] - base);
      const unsigned pair = pack_two<Element>(first, second);
      softened.p[i / 2][i % 2 * 2 + half] = pair;
      sum = sum + low_half(pair, type);
      sum = sum + high_half(pair, type);
    }
    for (int apart = 1; apart < 4; apart *= 2) sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
    softened.m[half] = largest;
    softened.l[half] = sum;
  }
  return softened;
}

/// p times dims [16 tile, 16 tile + 16) of the values of a span: products over the keys ascending, 16 at a time, from zero.
template <class Element, unsigned kDim>
__device__ inline void add_span_values(const Softened& softened, const Element* values, unsigned tile, float (&sums)[2][4]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) sums[0][j] = sums[1][j] = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < kSpan / 16; ++i) {
    unsigned b[4];
    ldmatrix_x4_trans(b, values + swizzled<kDim>(16 * i + lane % 16, 2 * tile + lane / 16));
    multiply(sums[0], softened.p[i], b[0], b[1], values);
    multiply(sums[1], softened.p[i], b[2], b[3], values);
  }
}

}  // namespace lockstep::device::cuda
