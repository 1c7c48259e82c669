#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::device {

/// How the numbers of a tensor are stored. The block-quantised types hold 32 neighbours of a row in one block; their layouts are those of
/// the GGUF format.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,  // [f16 scale][32 x int8]                  w = scale * q
  kQ4_0,  // [f16 scale][16 x 2 nibbles]             w = scale * (q - 8); byte i holds element i low, element i + 16 high
  kQ4_1,  // [f16 scale][f16 minimum][16 x 2 nibbles] w = scale * q + minimum
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;    // as GGUF and the flags spell it: "F32", "Q4_1"
  std::size_t block_size;   // elements of a block; 1 for plain types
  std::size_t block_bytes;  // bytes of a block
  bool block_quantised() const { return block_size > 1; }
};

const DTypeInfo& info(DType dtype);

/// Upper or lower case; nullopt for a name that is none of the types above. "float32", "float16", "half" and "bfloat16" are accepted.
std::optional<DType> dtype_from_name(std::string_view name);

/// Bytes of a row of `columns` elements. @throws std::invalid_argument if `columns` is not a whole number of blocks.
std::size_t row_bytes(DType dtype, std::size_t columns);

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);  // round to nearest, ties to even; overflow gives infinity
float bfloat16_to_float(std::uint16_t value);
std::uint16_t float_to_bfloat16(float value);  // round to nearest, ties to even; NaN stays NaN

/// Expands `values.size()` elements from stored bytes: the plain definition that every kernel is tested against.
/// @pre `stored` holds row_bytes(dtype, values.size()) bytes.
void dequantise(DType dtype, std::span<const std::byte> stored, std::span<float> values);

}  // namespace lockstep::device
