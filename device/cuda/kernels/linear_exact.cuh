#pragma once

#include "device/cuda/kernels/linear_group.cuh"
#include "device/cuda/kernels/linear_layout.cuh"
#include "device/cuda/kernels/portable.h"

namespace lockstep::device::cuda {

struct ExactLinear {
  const float* weights = nullptr;  // [panels][columns][32 rows]
  const Slice* leaves = nullptr;
  const float* in = nullptr;    // [num_tokens, in_stride]
  float* out = nullptr;         // [roots, num_tokens, out_stride]: the first column of the product
  const float* bias = nullptr;  // [num_rows], or null
  std::size_t in_stride = 0;
  std::size_t out_stride = 0;
  std::uint32_t num_leaves = 0;
  std::uint32_t num_columns = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_rows = 0;
  Grouping grouping;
};

/// A block is kPanels panels of 32 rows times kTokens * kTokenThreads tokens; a thread has kRows x kTokens sums in registers.
template <unsigned kPanels, unsigned kRows, unsigned kTokens, unsigned kTokenThreads>
struct ExactShape {
  static constexpr unsigned kColumns = 16;  // of a stage
  static constexpr unsigned kRowThreads = kPanels * kPanelRows / kRows;
  static constexpr unsigned kThreads = kRowThreads * kTokenThreads;
  static constexpr unsigned kTileTokens = kTokens * kTokenThreads;
  static constexpr unsigned kStages = kPanels > 1 ? 4 : 8;
  static constexpr unsigned kPanelFloats = kColumns * kPanelRows;  // of a stage
  static constexpr unsigned kStageFloats = kPanels * kPanelFloats;
  static constexpr unsigned kTokenStride = kTileTokens + 4;
  static constexpr unsigned kOpenAt = kStages * kStageFloats + 2 * kColumns * kTokenStride;  // floats
  static constexpr std::size_t shared_bytes(unsigned levels) {
    return (kOpenAt + std::size_t{levels} * kRows * kTokens * kThreads) * sizeof(float);
  }
};

/// The exact family: every sum is one chain of fused multiply-adds over the columns ascending, from +0 at each leaf, as on the CPU.
/// Bytes: weights once for every tile of tokens, activations once for every 32 kPanels rows. Flops: 2 * rows * columns * tokens.
/// Grouped: the weights of those tiles that have rows. Grid: (token tiles, groups of kPanels panels), block: kThreads.
template <unsigned kPanels, unsigned kRows, unsigned kTokens, unsigned kTokenThreads>
__global__ void __launch_bounds__(ExactShape<kPanels, kRows, kTokens, kTokenThreads>::kThreads) linear_exact_kernel(ExactLinear args) {
  using Shape = ExactShape<kPanels, kRows, kTokens, kTokenThreads>;
  constexpr unsigned kColumns = Shape::kColumns;
  LOCKSTEP_DYNAMIC_SHARED(float, shared);
  float* activations = shared + Shape::kStages * Shape::kStageFloats;  // [2][column][token]
  float* open = shared + Shape::kOpenAt + threadIdx.x;                 // [level][sum][thread]
  const BlockRows rows = rows_of_block(args, Shape::kTileTokens);
  if (rows.first >= rows.end) return;
  const auto* weights = static_cast<const float*>(rows.weights);
  const unsigned first_panel = blockIdx.y * kPanels;
  const unsigned num_panels = (args.num_rows + kPanelRows - 1) / kPanelRows;

  // Chunks of 16 columns, the last of a leaf shorter. Both operands are fetched ahead, each with a place of its own.
  struct Chunk {
    unsigned leaf, column;
  };
  const auto next = [&](Chunk& at) {
    at.column += kColumns;
    if (at.column < args.leaves[at.leaf].end_column) return;
    at.column = args.leaves[at.leaf].end_column;
    ++at.leaf;
  };
  Chunk weights_at{0, 0}, activations_at{0, 0};
  const auto fetch_weights = [&](unsigned stage) {
    if (weights_at.leaf < args.num_leaves) {
#pragma unroll
      for (unsigned i = 0; i < Shape::kStageFloats / 4 / Shape::kThreads; ++i) {
        const unsigned vector = i * Shape::kThreads + threadIdx.x, at = vector % (Shape::kPanelFloats / 4);
        const unsigned panel = first_panel + vector / (Shape::kPanelFloats / 4), column = weights_at.column + at / 8;
        const bool valid = panel < num_panels && column < args.num_columns;
        const std::size_t offset = (static_cast<std::size_t>(panel) * args.num_columns + column) * kPanelRows + at % 8 * 4;
        cp_async_16_or_zero(shared + stage * Shape::kStageFloats + vector * 4, weights + (valid ? offset : 0), valid);
      }
      next(weights_at);
    }
    cp_async_commit();
  };
  constexpr unsigned kFetched = kColumns * Shape::kTileTokens / Shape::kThreads;
  float fetched[kFetched];
  unsigned in_rows[kFetched];
#pragma unroll
  for (unsigned i = 0; i < kFetched; ++i) in_rows[i] = in_row_of(args, rows, rows.first + (i * Shape::kThreads + threadIdx.x) / kColumns);
  const auto fetch_activations = [&] {
#pragma unroll
    for (unsigned i = 0; i < kFetched; ++i) {
      const unsigned at = i * Shape::kThreads + threadIdx.x;
      const unsigned column = activations_at.column + at % kColumns;
      const bool valid = activations_at.leaf < args.num_leaves && column < args.num_columns && in_rows[i] != kNoRow;
      fetched[i] = valid ? args.in[in_rows[i] * args.in_stride + column] : 0.0f;
    }
    if (activations_at.leaf < args.num_leaves) next(activations_at);
  };
  const auto store_activations = [&](unsigned buffer) {
#pragma unroll
    for (unsigned i = 0; i < kFetched; ++i) {
      const unsigned at = i * Shape::kThreads + threadIdx.x;
      activations[(buffer * kColumns + at % kColumns) * Shape::kTokenStride + at / kColumns] = fetched[i];
    }
  };

  const unsigned row = threadIdx.x % Shape::kRowThreads * kRows, token = threadIdx.x / Shape::kRowThreads * kTokens;
  for (unsigned stage = 0; stage + 1 < Shape::kStages; ++stage) fetch_weights(stage);
  fetch_activations();
  store_activations(0);
  unsigned stage = 0, buffer = 0, depth = 0, root = 0, column = 0;
  for (unsigned s = 0; s < args.num_leaves; ++s) {
    const Slice& leaf = args.leaves[s];
    float sums[kRows][kTokens] = {};
    for (const unsigned end = leaf.end_column; column < end;) {
      cp_async_wait<Shape::kStages - 2>();
      __syncthreads();
      fetch_weights((stage + Shape::kStages - 1) % Shape::kStages);
      fetch_activations();
      const float* w = shared + stage * Shape::kStageFloats + row / kPanelRows * Shape::kPanelFloats + row % kPanelRows;
      const float* x = activations + buffer * kColumns * Shape::kTokenStride + token;
      const unsigned count = end - column < kColumns ? end - column : kColumns;
      const auto multiply = [&](unsigned k) {
#pragma unroll
        for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
          for (unsigned t = 0; t < kTokens; ++t) sums[r][t] = fmaf(x[k * Shape::kTokenStride + t], w[k * kPanelRows + r], sums[r][t]);
        }
      };
      if (count == kColumns) {
#pragma unroll
        for (unsigned k = 0; k < kColumns; ++k) multiply(k);
      } else {
        for (unsigned k = 0; k < count; ++k) multiply(k);
      }
      store_activations(buffer ^= 1u);
      stage = (stage + 1) % Shape::kStages;
      column += count;
    }
    const unsigned merges = leaf.merges, below = depth - merges;
    const bool ends_root = leaf.flags & Slice::kEndsRoot;
#pragma unroll
    for (unsigned i = 0; i < kRows * kTokens; ++i) {
      float sum = sums[i / kTokens][i % kTokens];
      for (unsigned m = 1; m <= merges; ++m) sum = open[((depth - m) * kRows * kTokens + i) * Shape::kThreads] + sum;
      const unsigned at_row = first_panel * kPanelRows + row + i / kTokens, at_token = rows.first + token + i % kTokens;
      if (!ends_root) {
        open[(below * kRows * kTokens + i) * Shape::kThreads] = sum;
      } else if (at_token < rows.end && at_row < args.num_rows) {
        args.out[(static_cast<std::size_t>(root) * args.num_tokens + at_token) * args.out_stride + at_row] =
            rows.bias != nullptr ? sum + rows.bias[at_row] : sum;
      }
    }
    depth = ends_root ? 0 : below + 1;
    if (ends_root) ++root;
  }
}

}  // namespace lockstep::device::cuda
