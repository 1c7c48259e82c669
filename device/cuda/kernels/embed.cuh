#pragma once

#include "device/cuda/kernels/linear_mma.cuh"

namespace lockstep::device::cuda {

/// A number of a packed table with one leaf, exactly as dequantise() has it.
template <DType kType>
__device__ inline float packed_number(const unsigned char* table, std::size_t num_units, unsigned row, unsigned column) {
  const std::size_t panel = row / kPanelRows;
  if constexpr (kType == DType::kF32) {
    return reinterpret_cast<const float*>(table)[(panel * num_units + column) * kPanelRows + row % kPanelRows];
  } else {
    const unsigned char* unit = table + (panel * num_units + column / kUnitColumns) * unit_bytes(kType);
    const unsigned in_panel = row % kPanelRows, in_unit = column % kUnitColumns;
    const unsigned offset = pair_offset<kType>(place_in_unit(in_panel, in_unit / 2 * 2));
    if constexpr (!is_block_quantised(kType)) {
      const std::uint16_t bits = *reinterpret_cast<const std::uint16_t*>(unit + offset + in_unit % 2 * 2);
      return kType == DType::kF16 ? float_of_half(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
    } else {
      const std::uint16_t* scale = reinterpret_cast<const std::uint16_t*>(unit + scale_offset<kType>(in_panel));
      if constexpr (kType == DType::kQ8_0) {
        return float_of_half(*scale) * static_cast<float>(static_cast<signed char>(unit[offset + in_unit % 2]));
      } else {
        const int quant = unit[offset] >> (in_unit % 2 * 4) & 15;
        if constexpr (kType == DType::kQ4_0) return float_of_half(*scale) * static_cast<float>(quant - 8);
        return float_of_half(*scale) * static_cast<float>(quant) + float_of_half(scale[4]);
      }
    }
  }
}

/// out[token] = the row of ids[token], +0 where the table does not have it; +0 instead of -0. A null table has no rows. With `adds`, the
/// row is added to what is there.
/// Bytes: a row of the table and 4 * columns written, for each token. Grid: (tokens, columns / 256), block: 256 threads.
template <DType kType>
__global__ void __launch_bounds__(256)
    embed_kernel(const unsigned char* table, std::size_t num_units, std::int32_t first_id, std::uint32_t num_rows, const std::int32_t* ids,
                 std::uint32_t columns, bool adds, float* out, std::size_t out_stride) {
  const unsigned column = blockIdx.y * 256 + threadIdx.x;
  if (column >= columns) return;
  const std::int32_t id = ids[blockIdx.x];
  const bool has = id >= 0 && id >= first_id && static_cast<std::uint32_t>(id - first_id) < num_rows;
  const float value = has ? packed_number<kType>(table, num_units, static_cast<unsigned>(id - first_id), column) : 0.0f;
  float& to = out[blockIdx.x * out_stride + column];
  if (!adds) to = value + 0.0f;  // -0 + 0 is +0
  if (adds && has) to = to + value;
}

}  // namespace lockstep::device::cuda
