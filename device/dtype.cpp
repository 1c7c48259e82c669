#include "device/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <stdexcept>
#include <string>

namespace lockstep::device {
namespace {

constexpr std::array<DTypeInfo, 6> kTypes{{
    {DType::kF32, "F32", 1, 4},
    {DType::kF16, "F16", 1, 2},
    {DType::kBF16, "BF16", 1, 2},
    {DType::kQ8_0, "Q8_0", 32, 34},
    {DType::kQ4_0, "Q4_0", 32, 18},
    {DType::kQ4_1, "Q4_1", 32, 20},
}};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void dequantise_block(DType dtype, const std::byte* block, float* values) {
  const float scale = half_to_float(load<std::uint16_t>(block));
  if (dtype == DType::kQ8_0) {
    for (int i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(load<std::int8_t>(block + 2 + i));
    return;
  }
  const bool has_minimum = dtype == DType::kQ4_1;
  const float minimum = has_minimum ? half_to_float(load<std::uint16_t>(block + 2)) : 0.0f;
  const std::byte* nibbles = block + (has_minimum ? 4 : 2);
  for (int i = 0; i < 16; ++i) {
    const int low = std::to_integer<int>(nibbles[i]) & 15;
    const int high = std::to_integer<int>(nibbles[i]) >> 4;
    values[i] = has_minimum ? scale * static_cast<float>(low) + minimum : scale * static_cast<float>(low - 8);
    values[i + 16] = has_minimum ? scale * static_cast<float>(high) + minimum : scale * static_cast<float>(high - 8);
  }
}

}  // namespace

const DTypeInfo& info(DType dtype) { return kTypes.at(static_cast<std::size_t>(dtype)); }

std::optional<DType> dtype_from_name(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (upper == "FLOAT32" || upper == "FLOAT") return DType::kF32;
  if (upper == "FLOAT16" || upper == "HALF") return DType::kF16;
  if (upper == "BFLOAT16") return DType::kBF16;
  for (const DTypeInfo& type : kTypes) {
    if (type.name == upper) return type.dtype;
  }
  return std::nullopt;
}

std::size_t row_bytes(DType dtype, std::size_t columns) {
  const DTypeInfo& type = info(dtype);
  if (columns % type.block_size != 0) {
    throw std::invalid_argument("a row of " + std::to_string(columns) + " columns is not a whole number of " + std::string(type.name) +
                                " blocks of " + std::to_string(type.block_size));
  }
  return columns / type.block_size * type.block_bytes;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u;
  const std::uint32_t mantissa = half & 1023u;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  }
  const std::uint32_t quiet =
      exponent == 31 && mantissa != 0 ? 0x400000u : 0u;  // a NaN comes out quiet, as from the processor's own conversion
  return std::bit_cast<float>(sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13) | quiet);
}

std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65536 and more
  if (magnitude < 0x38800000u) {                                                    // below 2^-14: a subnormal, in units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    const float rounded = (units + 0x1p23f) - 0x1p23f;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(rounded));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float bfloat16_to_float(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

void dequantise(DType dtype, std::span<const std::byte> stored, std::span<float> values) {
  switch (dtype) {
    case DType::kF32: std::memcpy(values.data(), stored.data(), values.size_bytes()); return;
    case DType::kF16:
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = half_to_float(load<std::uint16_t>(&stored[2 * i]));
      return;
    case DType::kBF16:
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = bfloat16_to_float(load<std::uint16_t>(&stored[2 * i]));
      return;
    default: break;
  }
  const std::size_t block_bytes = info(dtype).block_bytes;
  for (std::size_t block = 0; block * 32 < values.size(); ++block)
    dequantise_block(dtype, &stored[block * block_bytes], &values[block * 32]);
}

}  // namespace lockstep::device
