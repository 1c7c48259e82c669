#include "device/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <stdexcept>
#include <string>

namespace lockstep::device {
namespace {

constexpr std::array kTypes{
    DTypeInfo{DType::kF32, "F32", 1, 4},       DTypeInfo{DType::kF16, "F16", 1, 2},         DTypeInfo{DType::kBF16, "BF16", 1, 2},
    DTypeInfo{DType::kQ8_0, "Q8_0", 32, 34},   DTypeInfo{DType::kQ4_0, "Q4_0", 32, 18},     DTypeInfo{DType::kQ4_1, "Q4_1", 32, 20},
    DTypeInfo{DType::kQ5_0, "Q5_0", 32, 22},   DTypeInfo{DType::kQ5_1, "Q5_1", 32, 24},     DTypeInfo{DType::kQ2_K, "Q2_K", 256, 84},
    DTypeInfo{DType::kQ3_K, "Q3_K", 256, 110}, DTypeInfo{DType::kQ4_K, "Q4_K", 256, 144},   DTypeInfo{DType::kQ5_K, "Q5_K", 256, 176},
    DTypeInfo{DType::kQ6_K, "Q6_K", 256, 210}, DTypeInfo{DType::kIQ4_NL, "IQ4_NL", 32, 18}, DTypeInfo{DType::kIQ4_XS, "IQ4_XS", 256, 136},
    DTypeInfo{DType::kMXFP4, "MXFP4", 32, 17},
};

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

std::size_t covering_bytes(DType dtype, std::size_t first, std::size_t columns) {
  const DTypeInfo& type = info(dtype);
  if (first % type.cut_size() != 0 || columns % type.cut_size() != 0) {
    throw std::invalid_argument("columns " + std::to_string(first) + " + " + std::to_string(columns) + " of a row of " +
                                std::string(type.name) + " are not whole pieces of " + std::to_string(type.cut_size()));
  }
  const std::size_t end = (first + columns + type.block_size - 1) / type.block_size;
  return columns == 0 ? 0 : (end - first / type.block_size) * type.block_bytes;
}

std::string dtype_names() {
  std::string names;
  for (const DTypeInfo& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
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

}  // namespace lockstep::device
