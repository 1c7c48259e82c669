#pragma once

#include "device/cuda/kernels/attention_state.cuh"

/// Attention in fp32 with the bits of the CPU device (docs/numerics.md N5): a score is one chain over head_dim, the sum of a span goes by
/// 16 lanes, a value is one chain over the keys, spans are merged ascending.
namespace lockstep::device::cuda {

/// Four or eight numbers of the cache as floats.
__device__ inline void expand_16(uint4 raw, const float*, float* to) {
  to[0] = __uint_as_float(raw.x);
  to[1] = __uint_as_float(raw.y);
  to[2] = __uint_as_float(raw.z);
  to[3] = __uint_as_float(raw.w);
}
template <class Element>
__device__ inline void expand_16(uint4 raw, const Element* type, float* to) {
  const unsigned pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = low_half(pairs[i], type);
    to[2 * i + 1] = high_half(pairs[i], type);
  }
}

/// A vector of 16 bytes of the cache: `scale` is for the 8-bit types.
template <class Element>
__device__ inline void expand_vector(uint4 raw, float scale, const Element* type, float* to) {
  if constexpr (is_eight_bits<Element>) {
    expand_four(raw.x, scale, type, to);
    expand_four(raw.y, scale, type, to + 4);
    expand_four(raw.z, scale, type, to + 8);
    expand_four(raw.w, scale, type, to + 12);
  } else {
    expand_16(raw, type, to);
  }
}

/// What stands in the dynamic shared memory of attention_exact, in floats.
struct ExactLayout {
  unsigned row;  // of a key or value; odd, so that the same dim of all keys stands in different banks
  unsigned queries, vectors, probabilities, unit, total, end;
};
__host__ __device__ inline ExactLayout exact_layout(unsigned head_dim, unsigned rows) {
  const unsigned state = static_cast<unsigned>(state_floats(rows, state_stride(head_dim)));
  ExactLayout layout{};
  layout.row = head_dim | 1u;
  layout.unit = 0;
  layout.total = state;
  layout.probabilities = 2 * state;
  layout.queries = layout.probabilities + kSpan * kTileRows;
  layout.vectors = layout.queries + kTileRows * head_dim;
  layout.end = layout.vectors + kSpan * layout.row;
  return layout;
}

/// One tile of queries in one block, over spans of keys.
template <class Element>
struct ExactSpans {
  const AttentionArguments& arguments;
  const Tile& tile;
  const ExactLayout layout;
  float* shared;
  States unit;

  __device__ void load_queries() const {
    const unsigned head_dim = arguments.heads.head_dim;
    for (unsigned i = threadIdx.x; i < kTileRows * head_dim; i += kAttentionThreads) {
      const unsigned row = i / head_dim, dim = i % head_dim;
      float value = 0.0f;
      if (row < tile.num_rows) {
        value = arguments.qkv[(tile.sequence.first_token + tile.token_of(row)) * arguments.qkv_stride + tile.head_of(row) * head_dim + dim];
      }
      shared[layout.queries + i] = value;
    }
  }

  /// Keys or values of a span, expanded; those that no row of the tile sees are zeros.
  __device__ void load_vectors(unsigned span, std::size_t offset) const {
    constexpr unsigned kPerLoad = 16 / sizeof(Element);
    const CacheView& cache = arguments.cache;
    const unsigned loads = cache.vector_bytes / 16;
    for (unsigned i = threadIdx.x; i < kSpan * loads; i += kAttentionThreads) {
      const unsigned key = span * kSpan + i / loads, dim = i % loads * kPerLoad;
      float values[kPerLoad] = {};
      if (key >= tile.keys.begin && key < tile.keys.end) {
        const std::byte* block = cache.keys(tile.block_table[key / cache.block_size], tile.kv_head) + offset;
        const unsigned slot = key % cache.block_size;
        const float scale = is_eight_bits<Element> ? cache.scales(block)[slot] : 1.0f;
        expand_vector(load_16(block + static_cast<std::size_t>(slot) * cache.vector_bytes + i % loads * 16), scale,
                      static_cast<const Element*>(nullptr), values);
      }
      float* to = shared + layout.vectors + i / loads * layout.row + dim;
#pragma unroll
      for (unsigned j = 0; j < kPerLoad; ++j) {
        if (dim + j < cache.head_dim) to[j] = values[j];
      }
    }
  }

  /// A thread has one key and four rows at a time.
  __device__ void score() const {
    const unsigned head_dim = arguments.heads.head_dim;
    for (unsigned i = threadIdx.x; i < kSpan * ((tile.num_rows + 3) / 4); i += kAttentionThreads) {
      const float* key = shared + layout.vectors + i % kSpan * layout.row;
      const float* query = shared + layout.queries + i / kSpan * 4 * head_dim;
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (unsigned dim = 0; dim < head_dim; ++dim) {
        const float k = key[dim];
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) sums[j] = fmaf(query[j * head_dim + dim], k, sums[j]);
      }
      float* to = shared + layout.probabilities + i % kSpan * kTileRows + i / kSpan * 4;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) to[j] = sums[j] * arguments.scale;
    }
  }

  /// Half a warp has a row, a lane the keys that are equal to it mod 16. All warps go round as often.
  __device__ void soften(unsigned span) const {
    const unsigned lane = threadIdx.x % 16;
    for (unsigned first = 0; first < tile.num_rows; first += kAttentionThreads / 16) {
      const unsigned row = first + threadIdx.x / 16;
      const KeyRange range = tile.keys_of(row);
      float* scores = shared + layout.probabilities + row;
      float largest = -INFINITY, sum = 0.0f;
      for (unsigned i = lane; i < kSpan; i += 16) {
        if (span * kSpan + i < range.begin || span * kSpan + i >= range.end) continue;
        const float score = scores[i * kTileRows];
        largest = largest > score ? largest : score;
      }
      for (int apart = 8; apart > 0; apart /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, largest, apart, 16);
        largest = largest > other ? largest : other;
      }
      for (unsigned i = lane; i < kSpan; i += 16) {
        if (span * kSpan + i < range.begin || span * kSpan + i >= range.end) continue;
        const float p = exp_of(scores[i * kTileRows] - largest);
        scores[i * kTileRows] = p;
        sum = sum + p;
      }
      for (unsigned apart = 8; apart > 0; apart /= 2) sum = sum + __shfl_down_sync(0xFFFFFFFFu, sum, apart, 16);
      if (lane == 0 && row < tile.num_rows) {
        unit.m(row) = largest;
        unit.l(row) = sum;
      }
    }
  }

  /// Caps and slopes of the scores, where they stand: within score() the divisions would cost local memory.
  __device__ void bend(unsigned span) const {
    for (unsigned i = threadIdx.x; i < kSpan * tile.num_rows; i += kAttentionThreads) {
      const unsigned key = i / tile.num_rows, row = i % tile.num_rows;
      float& score = shared[layout.probabilities + key * kTileRows + row];
      score = bend_score(arguments.bend, tile.head_of(row), span * kSpan + key, score);
    }
  }

  /// A thread has one dim and four rows at a time.
  __device__ void add_values(unsigned span) const {
    const unsigned head_dim = arguments.heads.head_dim;
    for (unsigned i = threadIdx.x; i < head_dim * ((tile.num_rows + 3) / 4); i += kAttentionThreads) {
      const unsigned dim = i % head_dim, first_row = i / head_dim * 4;
      KeyRange ranges[4];
      for (unsigned j = 0; j < 4; ++j) ranges[j] = tile.keys_of(first_row + j);
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (unsigned n = 0; n < kSpan; ++n) {
        const unsigned key = span * kSpan + n;
        const float value = shared[layout.vectors + n * layout.row + dim];
        const float* p = shared + layout.probabilities + n * kTileRows + first_row;
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (key >= ranges[j].begin && key < ranges[j].end) sums[j] = fmaf(p[j], value, sums[j]);
        }
      }
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        if (first_row + j < tile.num_rows) unit.o(first_row + j, dim) = sums[j];
      }
    }
  }

  __device__ void compute(unsigned span) const {
    load_vectors(span, 0);
    __syncthreads();
    score();
    __syncthreads();
    if (arguments.bend.soft_cap != 0.0f || arguments.bend.slopes != nullptr) {
      bend(span);
      __syncthreads();
    }
    load_vectors(span, arguments.cache.value_offset());
    soften(span);
    __syncthreads();
    add_values(span);
    __syncthreads();
  }
};

/// Grid (tiles of kTileRows rows x parts, KV heads, sequences); a pad or a tile behind the sequence's last row leaves at once. Bytes: the
/// keys and values that the tile sees, 4 head_dim a row of queries and outputs, and what walk_units says. Operations: 4 head_dim a row and
/// key.
template <class Element>
__global__ void __launch_bounds__(kAttentionThreads, 6) attention_exact(AttentionArguments arguments) {
  LOCKSTEP_DYNAMIC_SHARED(float, shared);
  LOCKSTEP_SHARED(Blends, blends);
  const unsigned index = blockIdx.x / arguments.parts, part = blockIdx.x % arguments.parts;
  const Tile tile = find_tile(arguments, blockIdx.z, blockIdx.y, index * kTileRows, kTileRows);
  if (tile.num_rows == 0) return;
  const unsigned first = tile.keys.begin / kSpan, end = (tile.keys.end + kSpan - 1) / kSpan;
  const Share share = share_of(first, end, part, arguments.parts);
  if (share.first >= share.end) return;
  const ExactLayout layout = exact_layout(arguments.heads.head_dim, arguments.rows_limit);
  const unsigned stride = state_stride(arguments.heads.head_dim);
  const ExactSpans<Element> spans{arguments, tile, layout, shared, {shared + layout.unit, stride}};
  spans.load_queries();
  const unsigned tile_index = (blockIdx.z * gridDim.y + blockIdx.y) * (gridDim.x / arguments.parts) + index;
  walk_units<NaturalExp, float>(arguments, tile, tile_index, share, first, end, spans.unit, {shared + layout.total, stride}, blends,
                                [&](unsigned span) { spans.compute(span); });
}

}  // namespace lockstep::device::cuda
