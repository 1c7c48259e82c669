#pragma once

#include "device/cuda/kernels/attention_mma.cuh"

/// Decode in the 16-bit family: one token a sequence, so that few rows share the keys. A block's warps work on several spans at once.
namespace lockstep::device::cuda {

/// What stands in the dynamic shared memory of attention_decode, in bytes.
struct DecodeLayout {
  unsigned queries, keys, values, unit, total, end;
  unsigned states;  // of a span, over the keys when these are done with
};
template <unsigned kDim>
__host__ __device__ inline DecodeLayout decode_layout(unsigned head_dim, unsigned rows) {
  constexpr unsigned kSpansBytes = 2 * 256 * kSpan;  // 256 / kDim spans together
  const unsigned state = 4 * static_cast<unsigned>(state_floats(rows, state_stride(head_dim)));
  DecodeLayout layout{};
  layout.queries = 0;
  layout.keys = 2 * kTileRows * kDim;
  layout.states = layout.keys;
  layout.values = layout.keys + kSpansBytes;
  layout.unit = layout.values + kSpansBytes;
  layout.total = layout.unit + state;
  layout.end = layout.total + state;
  return layout;
}

template <class Element, unsigned kDim, bool kAsync>
struct DecodeGroups {
  static constexpr unsigned kSpansTogether = 256 / kDim;
  static constexpr unsigned kWarpsOfSpan = kAttentionThreads / 32 / kSpansTogether;  // each has 64 dims of the values
  static_assert(kGroupSpans % kSpansTogether == 0 && kWarpsOfSpan * 64 == kDim);

  const AttentionArguments& arguments;
  const Tile& tile;
  const DecodeLayout layout;
  std::byte* shared;
  States unit;
  Blends& blends;

  __device__ Element* matrix(unsigned offset) const { return reinterpret_cast<Element*>(shared + offset); }
  __device__ States states_of(unsigned i) const {
    const std::size_t bytes = 4 * state_floats(arguments.rows_limit, unit.stride);
    return {reinterpret_cast<float*>(shared + layout.states + i * bytes), unit.stride};
  }

  /// The sums of the warp's rows and dims, to the states of its span.
  __device__ void store(const States& states, const Softened& softened, unsigned part, unsigned dim_tiles, const Element* values) const {
    const unsigned lane = threadIdx.x % 32, head_dim = arguments.heads.head_dim;
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = lane / 4 + 8 * half;
      if (part != 0 || lane % 4 != 0 || row >= tile.num_rows) continue;
      states.m(row) = softened.m[half];
      states.l(row) = softened.l[half];
    }
    for (unsigned i = 4 * part; i < min(4 * part + 4, dim_tiles); ++i) {
      float sums[2][4];
      add_span_values<Element, kDim>(softened, values, i, sums);
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned dim = 16 * i + 8 * j + 2 * (lane % 4);
        if (dim >= head_dim) continue;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned row = lane / 4 + 8 * half;
          if (row < tile.num_rows) *reinterpret_cast<float2*>(&states.o(row, dim)) = make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
        }
      }
    }
  }

  /// kSpansTogether spans, merged into the unit.
  __device__ void compute_spans(unsigned first_span) const {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, index = warp / kWarpsOfSpan, span = first_span + index;
    for (unsigned i = 0; i < kSpansTogether; ++i) {
      load_span<Element, kDim, kAsync>(arguments.cache, tile, first_span + i, 0, matrix(layout.keys) + i * kSpan * kDim);
    }
    if constexpr (kAsync) cp_async_commit();
    for (unsigned i = 0; i < kSpansTogether; ++i) {
      load_span<Element, kDim, kAsync>(arguments.cache, tile, first_span + i, arguments.cache.value_offset(),
                                       matrix(layout.values) + i * kSpan * kDim);
    }
    if constexpr (kAsync) {
      cp_async_commit();
      cp_async_wait<1>();
    }
    __syncthreads();  // the keys are there
    const unsigned dim_tiles = (arguments.heads.head_dim + 15) / 16;
    float scores[kSpan / 8][4];
    score_span<Element, kDim>(matrix(layout.queries), matrix(layout.keys) + index * kSpan * kDim, dim_tiles, scores);
    const KeyRange ranges[2] = {tile.keys_of(lane / 4), tile.keys_of(lane / 4 + 8)};
    const bool bends = arguments.bend.soft_cap != 0.0f || arguments.bend.slopes != nullptr;
    if (bends) bend_span(scores, span * kSpan, tile, 0, arguments.scale, arguments.bend);
    const Softened softened = soften_span<Element>(scores, span * kSpan, ranges, bends ? 1.0f : arguments.scale);
    if constexpr (kAsync) cp_async_wait<0>();
    __syncthreads();  // the values are there, and nobody needs the keys any more
    store(states_of(index), softened, warp % kWarpsOfSpan, dim_tiles, matrix(layout.values) + index * kSpan * kDim);
    merge_states<BinaryExp>(
        unit, tile.num_rows, kSpansTogether, [this](unsigned i) { return states_of(i); }, blends);
  }

  __device__ void compute(unsigned group) const {
    clear_states(unit, tile.num_rows);  // the barriers of compute_spans stand between this and its merge
    for (unsigned span = group * kGroupSpans; span < (group + 1) * kGroupSpans; span += kSpansTogether) {
      if (span * kSpan < tile.keys.end && (span + kSpansTogether) * kSpan > tile.keys.begin) compute_spans(span);
    }
  }
};

/// Grid (tiles of kTileRows query heads x parts, KV heads, sequences). Blocks behind the real length of a sequence, and those of pads,
/// leave at once, so the grid may be that of a recording. Bytes: the keys and values that the tile sees, 4 head_dim a query, 2 head_dim an
/// output, and what walk_units says for groups of 256 keys. Operations: 4 head_dim a row (16 rows, padded) and key.
template <class Element, unsigned kDim, bool kAsync>
__global__ void __launch_bounds__(kAttentionThreads, 3) attention_decode(AttentionArguments arguments) {
  LOCKSTEP_DYNAMIC_SHARED(std::byte, shared);
  LOCKSTEP_SHARED(Blends, blends);
  const unsigned index = blockIdx.x / arguments.parts, part = blockIdx.x % arguments.parts;
  const Tile tile = find_tile(arguments, blockIdx.z, blockIdx.y, index * kTileRows, kTileRows);
  if (tile.num_rows == 0) return;
  const unsigned first = tile.keys.begin / kGroup, end = (tile.keys.end + kGroup - 1) / kGroup;
  const Share share = share_of(first, end, part, arguments.parts);
  if (share.first >= share.end) return;
  const DecodeLayout layout = decode_layout<kDim>(arguments.heads.head_dim, arguments.rows_limit);
  const unsigned stride = state_stride(arguments.heads.head_dim);
  const DecodeGroups<Element, kDim, kAsync> groups{
      arguments, tile, layout, shared, {reinterpret_cast<float*>(shared + layout.unit), stride}, blends};
  load_queries<Element, kDim>(arguments, tile, kTileRows, groups.matrix(layout.queries));
  const unsigned tile_index = (blockIdx.z * gridDim.y + blockIdx.y) * (gridDim.x / arguments.parts) + index;
  walk_units<BinaryExp, Element>(arguments, tile, tile_index, share, first, end, groups.unit,
                                 {reinterpret_cast<float*>(shared + layout.total), stride}, blends,
                                 [&](unsigned group) { groups.compute(group); });
}

}  // namespace lockstep::device::cuda
