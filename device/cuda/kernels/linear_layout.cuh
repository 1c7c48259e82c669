#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "device/dtype.h"

/// How weights stand in GPU memory. Rows are cut into panels of 32, the last one filled up with zeros; panel p is p * panel_bytes on.
///
/// F32 (exact family): a panel is [columns][32 rows] floats.
///
/// The others (mma family): a panel is a run of units of 32 rows x 32 columns. Every leaf begins with a unit of its own, the columns behind
/// its end are zeros, so that a leaf is whole mma steps. A unit is what one warp multiplies in two mma steps (k = 16 each) on two tiles
/// (m = 16 each), stored in the order of its registers: with g = row % 8 and t = column / 8, lane 4 g + t holds columns 8 t .. 8 t + 7 of
/// rows g, g + 8, g + 16 and g + 24. Which column is which k of an mma is free as long as both operands agree, and in this order a lane's
/// part of the activations is 16 bytes in a row of `in`, for both steps: neither operand needs ldmatrix or a swizzle, all vectors are
/// contiguous over the lanes of a warp, and no two lanes meet in a bank.
///
///   F16, BF16  [step 2][tile 2][lane 32][register 4][2] x 16 bits
///   Q8_0       [tile 2][lane 32][step 2][register 4][2] x int8, then scales [g 8][row / 8] f16
///   Q4_0       [lane 32][tile 2][step 2][register 4][2] x 4 bits (low first), then scales as Q8_0
///   Q4_1       quants as Q4_0, then [g 8]{scales [row / 8], minima [row / 8]} f16
namespace lockstep::device::cuda {

inline constexpr unsigned kPanelRows = 32;
inline constexpr unsigned kUnitColumns = 32;

/// A run of units that one warp adds up from zero. The sums of the slices of a leaf meet in ascending order, then those of the leaves as
/// Leaf says. For F32 a slice is a leaf, and its units are columns.
struct Slice {
  static constexpr std::uint32_t kBeginsLeaf = 1, kEndsLeaf = 2, kEndsRoot = 4;
  std::uint32_t first_unit = 0;
  std::uint32_t end_unit = 0;
  std::uint32_t first_column = 0;  // of the activations: where the first unit begins
  std::uint32_t end_column = 0;    // of the leaf: what stands there and behind does not belong to it
  std::uint32_t merges = 0;        // see Leaf; 0 unless the slice ends a leaf
  std::uint32_t flags = 0;
};

__host__ __device__ constexpr bool is_block_quantised(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ4_1;
}

__host__ __device__ constexpr unsigned unit_quant_bytes(DType type) {
  constexpr unsigned kElements = kPanelRows * kUnitColumns;
  return is_block_quantised(type) ? (type == DType::kQ8_0 ? kElements : kElements / 2) : 2 * kElements;
}

__host__ __device__ constexpr unsigned unit_bytes(DType type) {
  const unsigned headers = !is_block_quantised(type) ? 0 : type == DType::kQ4_1 ? 4 * kPanelRows : 2 * kPanelRows;
  return unit_quant_bytes(type) + headers;
}

/// Where a pair of columns (column even) of a row stands among the registers of a unit.
struct UnitPlace {
  unsigned step, tile, lane, reg;
};

__host__ __device__ inline UnitPlace place_in_unit(unsigned row, unsigned column) {
  return {column % 8 / 4, row / 16, row % 8 * 4 + column / 8, row % 16 / 8 + 2 * (column % 4 / 2)};
}

/// Byte of the pair in a unit; for Q4_0 and Q4_1 it holds both.
template <DType kType>
__host__ __device__ inline unsigned pair_offset(const UnitPlace& at) {
  if constexpr (kType == DType::kQ8_0) return ((at.tile * 32 + at.lane) * 8 + at.step * 4 + at.reg) * 2;
  if constexpr (kType == DType::kQ4_0 || kType == DType::kQ4_1) return (at.lane * 4 + at.tile * 2 + at.step) * 4 + at.reg;
  return (((at.step * 2 + at.tile) * 32 + at.lane) * 4 + at.reg) * 4;
}

/// Byte of a row's scale in a unit; the minimum of Q4_1 is 8 bytes on.
template <DType kType>
__host__ __device__ inline unsigned scale_offset(unsigned row) {
  return unit_quant_bytes(kType) + row % 8 * (kType == DType::kQ4_1 ? 16 : 8) + row / 8 * 2;
}

}  // namespace lockstep::device::cuda
