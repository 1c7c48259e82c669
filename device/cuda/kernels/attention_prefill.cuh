#pragma once

#include "device/cuda/kernels/attention_mma.cuh"

/// Prefill in the 16-bit family: 64 rows share each span, 16 a warp. The states are in registers, as mma leaves them: a lane has rows lane
/// / 4 and lane / 4 + 8, and of each 16 dims the columns 2 (lane % 4) and + 1 of two tiles of 8.
namespace lockstep::device::cuda {

constexpr unsigned kPrefillWarps = kAttentionThreads / 32;
constexpr unsigned kPrefillRows = kPrefillWarps * kTileRows;

/// What stands in the dynamic shared memory of attention_prefill, in bytes.
template <unsigned kDim>
struct PrefillLayout {
  static constexpr unsigned kStages = kDim == 256 ? 1 : 2;  // spans at once: one is loaded while the other is worked on
  static constexpr unsigned kMatrix = 2 * kSpan * kDim;
  static constexpr unsigned kQueries = 0;
  static constexpr unsigned kKeys = 2 * kPrefillRows * kDim;
  static constexpr unsigned kValues = kKeys + kStages * kMatrix;
  static constexpr unsigned kTotals = kValues + kStages * kMatrix;  // of the groups that are done, fp32
  static constexpr unsigned kEnd = kTotals + 4 * kPrefillRows * kDim;
};

template <class Element, unsigned kDim>
struct PrefillRows {
  static constexpr unsigned kTiles = kDim / 16;

  float o[kTiles][2][4] = {};  // of the group at work
  float m[2] = {0.0f, 0.0f};
  float l[2] = {0.0f, 0.0f};
  float total_m[2] = {0.0f, 0.0f};
  float total_l[2] = {0.0f, 0.0f};

  __device__ void take_span(const Softened& softened, const Element* values, unsigned dim_tiles) {
    Blend blends[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) blends[half] = merge_row<BinaryExp>(m[half], l[half], softened.m[half], softened.l[half]);
#pragma unroll
    for (unsigned i = 0; i < kTiles; ++i) {
      if (i >= dim_tiles) continue;
      float sums[2][4];
      add_span_values<Element, kDim>(softened, values, i, sums);
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) o[i][j][n] = blends[n / 2].of(o[i][j][n], sums[j][n]);
      }
    }
  }

  /// Merges the group into the totals, which each lane keeps in shared memory for itself, and begins the next.
  __device__ void close_group(float* totals, unsigned dim_tiles) {
    Blend blends[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) blends[half] = merge_row<BinaryExp>(total_m[half], total_l[half], m[half], l[half]);
#pragma unroll
    for (unsigned i = 0; i < kTiles; ++i) {
      if (i >= dim_tiles) continue;
#pragma unroll
      for (unsigned n = 0; n < 8; ++n) {
        float& total = totals[(8 * i + n) * 32 + threadIdx.x % 32];
        total = blends[n % 4 / 2].of(total, o[i][n / 4][n % 4]);
      }
    }
    l[0] = l[1] = 0.0f;
  }
};

/// Where the `index`-th tile of all sequences of the step is, for one KV head. Each warp looks for itself, 32 sequences at a time.
struct TilePlace {
  unsigned sequence;  // num_sequences: there is no such tile
  unsigned first_row;
};
__device__ inline TilePlace find_place(const StepView& step, unsigned num_heads, unsigned index) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned first = 0; first < step.num_sequences; first += 32) {
    const unsigned sequence = first + lane;
    const unsigned rows = sequence < step.num_sequences ? step.sequences[sequence].num_tokens * num_heads : 0;
    const unsigned tiles = (rows + kPrefillRows - 1) / kPrefillRows;
    unsigned up_to = tiles;  // the tiles of lanes up to this one
    for (unsigned apart = 1; apart < 32; apart *= 2) {
      const unsigned below = __shfl_up_sync(0xFFFFFFFFu, up_to, apart);
      if (lane >= apart) up_to += below;
    }
    const unsigned behind = __ballot_sync(0xFFFFFFFFu, up_to > index);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      const unsigned before = __shfl_sync(0xFFFFFFFFu, up_to - tiles, owner);
      return {first + static_cast<unsigned>(owner), (index - before) * kPrefillRows};
    }
    index -= __shfl_sync(0xFFFFFFFFu, up_to, 31);
  }
  return {step.num_sequences, 0};
}

template <class Element>
__device__ inline void write_pair(Element* out, bool both, bool aligned, float first, float second) {
  if (both && aligned) {
    *reinterpret_cast<unsigned*>(out) = pack_two<Element>(first, second);
    return;
  }
  out[0] = from_float<Element>(first);
  if (both) out[1] = from_float<Element>(second);
}

/// The results of a warp's rows, to the output.
template <class Element>
__device__ inline void write_rows(const AttentionArguments& arguments, const Tile& tile, unsigned first_row, const float* totals,
                                  const float (&m)[2], const float (&l)[2], unsigned dim_tiles) {
  const unsigned lane = threadIdx.x % 32, head_dim = arguments.heads.head_dim;
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = first_row + lane / 4 + 8 * half;
    if (row >= tile.num_rows) continue;
    const Ending ending = end_row<BinaryExp>(arguments, tile.head_of(row), m[half], l[half]);
    Element* out = static_cast<Element*>(arguments.out) + (tile.sequence.first_token + tile.token_of(row)) * arguments.out_stride +
                   tile.head_of(row) * head_dim;
    for (unsigned i = 0; i < 2 * dim_tiles; ++i) {
      const unsigned dim = 8 * i + 2 * (lane % 4);
      if (dim >= head_dim) continue;
      const float* pair = totals + (4 * i + 2 * half) * 32 + lane;
      write_pair(out + dim, dim + 1 < head_dim, head_dim % 2 == 0, pair[0] * ending.factor / ending.sum,
                 pair[32] * ending.factor / ending.sum);
    }
  }
}

/// Grid (tiles of kPrefillRows rows of all sequences, KV heads); there may be more blocks than tiles. Bytes: the keys and values that the
/// tile sees, 4 head_dim a query, 2 head_dim an output. Operations: 4 head_dim a row and key of the spans that a warp sees.
template <class Element, unsigned kDim, bool kAsync>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_prefill(AttentionArguments arguments) {
  using Layout = PrefillLayout<kDim>;
  constexpr unsigned kStages = Layout::kStages;
  LOCKSTEP_DYNAMIC_SHARED(std::byte, shared);
  // The last tiles of a prompt have the most keys, so they go first.
  const HeadRun heads = heads_of_kv_head(arguments.heads, blockIdx.y);
  const TilePlace place = find_place(arguments.step, heads.count, gridDim.x - 1 - blockIdx.x);
  if (place.sequence == arguments.step.num_sequences) return;
  const Tile tile = find_tile(arguments, place.sequence, blockIdx.y, place.first_row, kPrefillRows);
  if (tile.num_rows == 0) return;
  Element* queries = reinterpret_cast<Element*>(shared + Layout::kQueries);
  Element* keys = reinterpret_cast<Element*>(shared + Layout::kKeys);
  Element* values = reinterpret_cast<Element*>(shared + Layout::kValues);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = warp * kTileRows;
  float* totals = reinterpret_cast<float*>(shared + Layout::kTotals) + warp * kTileRows * kDim;
  const unsigned dim_tiles = (arguments.heads.head_dim + 15) / 16;
  const KeyRange ranges[2] = {tile.keys_of(first_row + lane / 4), tile.keys_of(first_row + lane / 4 + 8)};
  const unsigned last_row = min(first_row + kTileRows, tile.num_rows) - 1;
  const KeyRange seen = {tile.keys_of(first_row).begin, first_row < tile.num_rows ? tile.keys_of(last_row).end : 0};

  const auto load = [&](unsigned span) {
    const unsigned stage = span % kStages * kSpan * kDim;
    load_span<Element, kDim, kAsync>(arguments.cache, tile, span, 0, keys + stage);
    load_span<Element, kDim, kAsync>(arguments.cache, tile, span, arguments.cache.value_offset(), values + stage);
    if constexpr (kAsync) cp_async_commit();
  };
  load_queries<Element, kDim>(arguments, tile, kPrefillRows, queries);
  for (unsigned i = 0; i < 8 * dim_tiles; ++i) totals[i * 32 + lane] = 0.0f;
  const unsigned begin = tile.keys.begin / kSpan, end = (tile.keys.end + kSpan - 1) / kSpan;
  PrefillRows<Element, kDim> rows;
  if (kStages == 2) load(begin);
  for (unsigned span = begin; span < end; ++span) {
    const bool loads_ahead = kStages == 2 && span + 1 < end;
    if (kStages == 1) load(span);
    if (loads_ahead) load(span + 1);
    if constexpr (kAsync) {
      if (loads_ahead) {
        cp_async_wait<1>();
      } else {
        cp_async_wait<0>();
      }
    }
    __syncthreads();  // the span is there
    if (span * kSpan < seen.end && (span + 1) * kSpan > seen.begin) {
      const unsigned stage = span % kStages * kSpan * kDim;
      float scores[kSpan / 8][4];
      score_span<Element, kDim>(queries + first_row * kDim, keys + stage, dim_tiles, scores);
      const bool bends = arguments.bend.soft_cap != 0.0f || arguments.bend.slopes != nullptr;
      if (bends) bend_span(scores, span * kSpan, tile, first_row, arguments.scale, arguments.bend);
      const Softened softened = soften_span<Element>(scores, span * kSpan, ranges, bends ? 1.0f : arguments.scale);
      rows.take_span(softened, values + stage, dim_tiles);
    }
    if ((span + 1) % kGroupSpans == 0 || span + 1 == end) rows.close_group(totals, dim_tiles);
    __syncthreads();  // everybody is done with it
  }
  write_rows<Element>(arguments, tile, first_row, totals, rows.total_m, rows.total_l, dim_tiles);
}

}  // namespace lockstep::device::cuda
