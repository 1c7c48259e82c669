#pragma once

#include "device/cuda/kernels/linear_mma.cuh"

namespace lockstep::device::cuda {

/// The tile for many tokens: a block is 4 panels of 32 rows, one a warp, times 8 kTiles tokens, which the warps share. Each warp walks over
/// all columns and adds up its slices as it goes; sums that the leaves leave open wait in shared memory. So no weight is expanded twice in
/// a block.
template <DType kType, int kTiles>
struct PrefillShape {
  static constexpr unsigned kWarps = 4;
  static constexpr unsigned kThreads = 32 * kWarps;
  static constexpr unsigned kRows = kWarps * kPanelRows;
  static constexpr unsigned kTokens = 8 * kTiles;
  static constexpr unsigned kTokensAt = kWarps * unit_bytes(kType);
  static constexpr unsigned kStageBytes = kTokensAt + kTokens * kUnitColumns * 2;
  static constexpr unsigned kStages = kTiles > 4 ? 4 : 3;
  static constexpr unsigned kSums = 8 * kTiles;  // of a thread
  static constexpr unsigned kOpenAt = kStages * kStageBytes;
  static constexpr std::size_t shared_bytes(unsigned levels) { return kOpenAt + std::size_t{levels} * kSums * kThreads * 4; }
};

/// Bytes: weights once for every 8 kTiles tokens, activations once for every 128 rows (all but the first time from L2: blocks that share
/// weights are neighbours). Flops: 2 * rows * columns * tokens. Grouped: the weights of those tiles that have rows. Grid: (token tiles,
/// groups of 4 panels), block: 128 threads.
template <DType kType, int kTiles>
__global__ void __launch_bounds__(128, 2) linear_prefill_kernel(MmaLinear args) {
  using Shape = PrefillShape<kType, kTiles>;
  LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockRows rows = rows_of_block(args, Shape::kTokens);
  if (rows.first >= rows.end) return;
  const unsigned panel = blockIdx.y * Shape::kWarps + warp;
  const unsigned last_panel = (args.num_rows - 1) / kPanelRows;
  const unsigned char* weights =  // a warp behind the last panel goes through the motions
      static_cast<const unsigned char*>(rows.weights) +
      static_cast<std::size_t>(panel < last_panel ? panel : last_panel) * args.num_units * unit_bytes(kType);
  unsigned in_rows[kTiles / 4];  // of which this thread fetches a part
#pragma unroll
  for (unsigned i = 0; i < kTiles / 4; ++i) in_rows[i] = in_row_of(args, rows, rows.first + (i * Shape::kThreads + threadIdx.x) / 4);

  UnitWalk ahead(args, 0, 1);
  const auto fetch_next = [&](unsigned stage) {
    if (ahead.valid()) {
      unsigned char* to = shared + stage * Shape::kStageBytes;
      fetch_unit<kType>(to + warp * unit_bytes(kType), weights + static_cast<std::size_t>(ahead.unit()) * unit_bytes(kType), lane);
#pragma unroll
      for (unsigned i = 0; i < kTiles / 4; ++i) {
        const unsigned vector = i * Shape::kThreads + threadIdx.x;
        fetch_tokens(to + Shape::kTokensAt + vector * 16, args, in_rows[i], ahead.column() + vector % 4 * 8, ahead.end_column());
      }
      ahead.next();
    }
    cp_async_commit();
  };

  for (unsigned stage = 0; stage + 1 < Shape::kStages; ++stage) fetch_next(stage);
  float leaf[2][kTiles][4] = {};
  float* open = reinterpret_cast<float*>(shared + Shape::kOpenAt) + threadIdx.x;  // [level][sum][thread]
  unsigned stage = 0, depth = 0, root = 0;
  for (unsigned s = 0; s < args.num_slices; ++s) {
    const Slice& slice = args.slices[s];
    float sums[2][kTiles][4] = {};
    for (unsigned units = slice.end_unit - slice.first_unit; units > 0; --units) {
      cp_async_wait<Shape::kStages - 2>();
      __syncthreads();  // everyone's copies are there, and everyone has read the stage that is fetched next
      fetch_next((stage + Shape::kStages - 1) % Shape::kStages);
      const unsigned char* from = shared + stage * Shape::kStageBytes;
      multiply_unit<kType, kTiles>(from + warp * unit_bytes(kType), from + Shape::kTokensAt, lane, sums);
      stage = (stage + 1) % Shape::kStages;
    }
    const unsigned merges = slice.merges, flags = slice.flags, below = depth - merges;
    const bool begins = flags & Slice::kBeginsLeaf, ends = flags & Slice::kEndsLeaf, ends_root = flags & Slice::kEndsRoot;
#pragma unroll
    for (unsigned i = 0; i < Shape::kSums; ++i) {  // the fragment: rows g and g + 8 of two tiles, tokens 2 t and 2 t + 1
      const unsigned tile = i / 4 / kTiles, n = i / 4 % kTiles;
      float& sum = leaf[tile][n][i % 4];
      sum = begins ? sums[tile][n][i % 4] : sum + sums[tile][n][i % 4];
      if (!ends) continue;
      for (unsigned m = 1; m <= merges; ++m) sum = open[((depth - m) * Shape::kSums + i) * Shape::kThreads] + sum;
      const unsigned token = rows.first + n * 8 + lane % 4 * 2 + i % 2;
      const unsigned row = panel * kPanelRows + tile * 16 + i % 4 / 2 * 8 + lane / 4;
      if (!ends_root) {
        open[(below * Shape::kSums + i) * Shape::kThreads] = sum;
      } else if (token < rows.end && row < args.num_rows) {
        args.out[(static_cast<std::size_t>(root) * args.num_tokens + token) * args.out_stride + row] =
            rows.bias != nullptr ? sum + rows.bias[row] : sum;
      }
    }
    if (ends) depth = ends_root ? 0 : below + 1;
    if (ends_root) ++root;
  }
}

}  // namespace lockstep::device::cuda
