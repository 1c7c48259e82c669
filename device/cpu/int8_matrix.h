#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/kernels.h"
#include "device/device.h"

/// The layout of a kInt8Blocks matrix on the CPU: quants of all rows, then scales, scaled sums and sums (of 16 columns each) of all blocks.
namespace lockstep::device::cpu {

/// A little more than the columns: rows a power of two apart would meet in the same few cache sets.
inline std::size_t int8_row_stride(std::size_t columns) { return (columns + 15) / 16 * 16 + 64; }

inline std::size_t int8_matrix_bytes(std::size_t rows, std::size_t columns) {
  return rows * (int8_row_stride(columns) + columns / kBlock * (2 * sizeof(float) + 2 * sizeof(std::int32_t)));
}

inline Int8View int8_view(const Matrix& matrix) {
  const std::size_t blocks = matrix.columns / kBlock, stride = int8_row_stride(matrix.columns);
  std::byte* at = static_cast<std::byte*>(matrix.data);
  float* scales = reinterpret_cast<float*>(at + matrix.capacity_rows * stride);
  float* scaled_sums = scales + matrix.capacity_rows * blocks;
  std::int32_t* sums = reinterpret_cast<std::int32_t*>(scaled_sums + matrix.capacity_rows * blocks);
  return {reinterpret_cast<std::int8_t*>(at), scales, scaled_sums, sums, stride, blocks};
}

/// Row `row` from block `first_block` on.
inline Int8Row int8_row(const Int8View& view, std::size_t row, std::size_t first_block = 0) {
  const std::size_t entry = row * view.blocks + first_block;
  return {view.quants + row * view.stride + first_block * kBlock, view.scales + entry, view.scaled_sums + entry, view.sums + 2 * entry};
}

}  // namespace lockstep::device::cpu
