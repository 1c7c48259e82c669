#include "device/cuda/weight_packing.h"

#include <algorithm>
#include <cstring>

namespace lockstep::device::cuda {
namespace {

void pack_exact(std::size_t columns, std::size_t row, const std::byte* stored, std::byte* panel) {
  for (std::size_t k = 0; k < columns; ++k)
    std::memcpy(panel + (k * kPanelRows + row) * sizeof(float), stored + k * sizeof(float), sizeof(float));
}

/// `count` columns of a row of 16-bit numbers.
void pack_halves(unsigned row, unsigned count, const std::byte* stored, std::byte* unit) {
  for (unsigned column = 0; column < count; column += 2) {
    std::memcpy(unit + pair_offset<DType::kBF16>(place_in_unit(row, column)), stored + std::size_t{2} * column, count - column > 1 ? 4 : 2);
  }
}

void pack_q8(unsigned row, const std::byte* block, std::byte* unit) {
  std::memcpy(unit + scale_offset<DType::kQ8_0>(row), block, 2);
  for (unsigned column = 0; column < 32; column += 2) {
    std::memcpy(unit + pair_offset<DType::kQ8_0>(place_in_unit(row, column)), block + 2 + column, 2);
  }
}

template <DType kType>
void pack_q4(unsigned row, const std::byte* block, std::byte* unit) {
  std::memcpy(unit + scale_offset<kType>(row), block, 2);
  if constexpr (kType == DType::kQ4_1) std::memcpy(unit + scale_offset<kType>(row) + 8, block + 2, 2);
  const std::byte* nibbles = block + (kType == DType::kQ4_1 ? 4 : 2);
  const std::byte low{15}, high{240};
  for (unsigned column = 0; column < 16; column += 2) {
    const std::byte first = nibbles[column], second = nibbles[column + 1];
    unit[pair_offset<kType>(place_in_unit(row, column))] = (first & low) | (second << 4);
    unit[pair_offset<kType>(place_in_unit(row, column + 16))] = (first >> 4) | (second & high);
  }
}

}  // namespace

std::size_t panel_bytes(const WeightSpec& spec, const SlicePlan& plan) {
  return std::size_t{plan.num_units} * (spec.dtype == DType::kF32 ? kPanelRows * sizeof(float) : unit_bytes(spec.dtype));
}

void pack_panel(const WeightSpec& spec, const SlicePlan& plan, std::span<const std::byte> stored, std::span<std::byte> panel) {
  std::memset(panel.data(), 0, panel.size());
  const std::size_t bytes = row_bytes(spec.dtype, spec.columns);
  for (std::size_t row = 0; row * bytes < stored.size(); ++row) {
    const std::byte* from = &stored[row * bytes];
    if (spec.dtype == DType::kF32) {
      pack_exact(spec.columns, row, from, panel.data());
      continue;
    }
    const unsigned r = static_cast<unsigned>(row);
    for (const Slice& slice : plan.slices) {
      for (std::uint32_t unit = slice.first_unit; unit < slice.end_unit; ++unit) {
        const std::uint32_t column = slice.first_column + (unit - slice.first_unit) * kUnitColumns;
        const unsigned count = std::min(kUnitColumns, slice.end_column - column);
        std::byte* to = &panel[std::size_t{unit} * unit_bytes(spec.dtype)];
        switch (spec.dtype) {
          case DType::kQ8_0: pack_q8(r, from + column / 32 * 34, to); break;
          case DType::kQ4_0: pack_q4<DType::kQ4_0>(r, from + column / 32 * 18, to); break;
          case DType::kQ4_1: pack_q4<DType::kQ4_1>(r, from + column / 32 * 20, to); break;
          default: pack_halves(r, count, from + std::size_t{2} * column, to);
        }
      }
    }
  }
}

}  // namespace lockstep::device::cuda
