#pragma once

#include "device/cuda/kernels/portable.h"
#include "device/cuda/views.h"

/// Grouped products (see Grouping): a block whose tile has no rows reads no weight.
namespace lockstep::device::cuda {

/// What a block computes.
struct BlockRows {
  const void* weights = nullptr;
  const float* bias = nullptr;
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

/// `Linear` is MmaLinear or ExactLinear.
template <class Linear>
__device__ inline BlockRows rows_of_block(const Linear& args, unsigned tile_rows) {
  if (args.grouping.tiles == nullptr) return {args.weights, args.bias, blockIdx.x * tile_rows, args.num_tokens};
  const Grouping::Tile tile = args.grouping.tiles[blockIdx.x];
  if (tile.first_row >= tile.end_row) return {};
  const Grouping::Weight weight = args.grouping.weights[tile.weight];
  return {weight.data, weight.bias, tile.first_row, tile.end_row};
}

/// The row of `in` that goes into row `row` of `out`; kNoRow behind the last row of the block.
template <class Linear>
__device__ inline unsigned in_row_of(const Linear& args, const BlockRows& rows, unsigned row) {
  if (row >= rows.end) return kNoRow;
  return args.grouping.in_rows == nullptr ? row : args.grouping.in_rows[row];
}

}  // namespace lockstep::device::cuda
