#pragma once

#include "device/cuda/kernels/linear_mma.cuh"

namespace lockstep::device::cuda {

/// The tile for few tokens: a block is one panel of 32 rows times 8 kTiles tokens. Its 8 warps take the slices in turn, each with a
/// pipeline of its own, without barriers; after each round of 8 slices their sums meet in shared memory and are added up in the fixed
/// order.
template <DType kType, int kTiles>
struct DecodeShape {
  static constexpr unsigned kWarps = 8;
  static constexpr unsigned kTokens = 8 * kTiles;
  static constexpr unsigned kStageBytes = unit_bytes(kType) + kTokens * kUnitColumns * 2;
  static constexpr unsigned kFit = 80 * 1024 / (kWarps * kStageBytes);
  static constexpr unsigned kStages = kFit < 3 ? 3 : kFit > 8 ? 8 : kFit;
  static constexpr unsigned kTokenStride = kPanelRows + 4;  // of a sum: the four tokens of a fragment meet in different banks
  static constexpr unsigned kElements = kTokens * kPanelRows;
  static constexpr unsigned kPartialFloats = kTokens * kTokenStride;  // of one warp
  static constexpr unsigned kPartialsAt = kWarps * kStages * kStageBytes;
  static constexpr unsigned kOpenAt = kPartialsAt + kWarps * kPartialFloats * 4;
  static constexpr std::size_t shared_bytes(unsigned levels) { return kOpenAt + std::size_t{levels} * kElements * 4; }
};

/// Bytes: weights once for every 8 kTiles tokens; activations once for every 32 rows (from L2). Flops: 2 * rows * columns * tokens.
/// Grouped: the weights of those tiles that have rows. Grid: (token tiles, panels), block: 256 threads.
template <DType kType, int kTiles>
__global__ void __launch_bounds__(256) linear_decode_kernel(MmaLinear args) {
  using Shape = DecodeShape<kType, kTiles>;
  LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
  float* partials = reinterpret_cast<float*>(shared + Shape::kPartialsAt);
  float* open = reinterpret_cast<float*>(shared + Shape::kOpenAt);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockRows rows = rows_of_block(args, Shape::kTokens);
  if (rows.first >= rows.end) return;
  const unsigned panel = blockIdx.y;
  unsigned char* stages = shared + warp * Shape::kStages * Shape::kStageBytes;
  const unsigned char* weights =
      static_cast<const unsigned char*>(rows.weights) + static_cast<std::size_t>(panel) * args.num_units * unit_bytes(kType);
  unsigned in_rows[kTiles];  // of which this lane fetches a part
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) in_rows[n] = in_row_of(args, rows, rows.first + n * 8 + lane / 4);

  UnitWalk ahead(args, warp, Shape::kWarps);
  const auto fetch_next = [&](unsigned stage) {
    if (ahead.valid()) {
      unsigned char* to = stages + stage * Shape::kStageBytes;
      fetch_unit<kType>(to, weights + static_cast<std::size_t>(ahead.unit()) * unit_bytes(kType), lane);
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n) {
        fetch_tokens(to + unit_bytes(kType) + (n * 32 + lane) * 16, args, in_rows[n], ahead.column() + lane % 4 * 8, ahead.end_column());
      }
      ahead.next();
    }
    cp_async_commit();
  };

  for (unsigned stage = 0; stage + 1 < Shape::kStages; ++stage) fetch_next(stage);
  unsigned stage = 0, depth = 0, root = 0;
  float leaf[kTiles] = {};  // one element of the product for each: row threadIdx.x % 32, token i * 8 + threadIdx.x / 32
  for (unsigned first = 0; first < args.num_slices; first += Shape::kWarps) {
    if (first + warp < args.num_slices) {
      float sums[2][kTiles][4] = {};
      const Slice& slice = args.slices[first + warp];
      for (unsigned units = slice.end_unit - slice.first_unit; units > 0; --units) {
        cp_async_wait<Shape::kStages - 2>();
        if constexpr (is_block_quantised(kType)) __syncwarp();  // scales were copied by other lanes, and those of the last stage are read
        fetch_next((stage + Shape::kStages - 1) % Shape::kStages);
        const unsigned char* from = stages + stage * Shape::kStageBytes;
        multiply_unit<kType, kTiles>(from, from + unit_bytes(kType), lane, sums);
        stage = (stage + 1) % Shape::kStages;
      }
      float* to = partials + warp * Shape::kPartialFloats;
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) {  // the fragment: rows g and g + 8 of two tiles, tokens 2 t and 2 t + 1
          const unsigned token = n * 8 + lane % 4 * 2 + i % 2, row = i / 4 * 16 + i % 4 / 2 * 8 + lane / 4;
          to[token * Shape::kTokenStride + row] = sums[i / 4][n][i % 4];
        }
      }
    }
    __syncthreads();
    for (unsigned s = first; s < first + Shape::kWarps && s < args.num_slices; ++s) {
      const Slice& slice = args.slices[s];
      const float* from = partials + (s - first) * Shape::kPartialFloats + warp * Shape::kTokenStride + lane;
      const unsigned merges = slice.merges, flags = slice.flags, below = depth - merges;
#pragma unroll
      for (unsigned i = 0; i < kTiles; ++i) {
        const float sum = from[i * 8 * Shape::kTokenStride];
        leaf[i] = flags & Slice::kBeginsLeaf ? sum : leaf[i] + sum;
        if (!(flags & Slice::kEndsLeaf)) continue;
        float* element = open + i * 256 + threadIdx.x;
        for (unsigned m = 1; m <= merges; ++m) leaf[i] = element[(depth - m) * Shape::kElements] + leaf[i];
        const unsigned token = rows.first + i * 8 + warp, row = panel * kPanelRows + lane;
        if (!(flags & Slice::kEndsRoot)) {
          element[below * Shape::kElements] = leaf[i];
        } else if (token < rows.end && row < args.num_rows) {
          const float bias = rows.bias != nullptr ? rows.bias[row] : 0.0f;
          args.out[(static_cast<std::size_t>(root) * args.num_tokens + token) * args.out_stride + row] =
              rows.bias != nullptr ? leaf[i] + bias : leaf[i];
        }
      }
      if (flags & Slice::kEndsLeaf) depth = flags & Slice::kEndsRoot ? 0 : below + 1;
      if (flags & Slice::kEndsRoot) ++root;
    }
    if (first + Shape::kWarps < args.num_slices) __syncthreads();  // the next round writes the partial sums anew
  }
}

}  // namespace lockstep::device::cuda
