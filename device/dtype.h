#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::device {

/// How the numbers of a tensor are stored. The block-quantised types hold 32 or 256 neighbours of a row in one block; their layouts are
/// those of the GGUF format. d and m are f16 unless said otherwise; "sub" are the scales of a super-block's parts, 6 bits each where two
/// numbers of bits are given.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,    // [f16 scale][32 x int8]                  w = scale * q
  kQ4_0,    // [f16 scale][16 x 2 nibbles]             w = scale * (q - 8); byte i holds element i low, element i + 16 high
  kQ4_1,    // [f16 scale][f16 minimum][16 x 2 nibbles] w = scale * q + minimum
  kQ5_0,    // [d][32 fifth bits][16 x 2 nibbles]      w = d * (q - 16)
  kQ5_1,    // [d][m][32 fifth bits][16 x 2 nibbles]   w = d * q + m
  kQ2_K,    // 256 columns, parts of 16: [16 x (4-bit sub, 4-bit sub minimum)][2 bits each][d][m]   w = d * sub * q - m * sub minimum
  kQ3_K,    // 256 columns, parts of 16: [third bits][2 bits each][16 x 6-bit sub][d]                w = d * (sub - 32) * (q - 4)
  kQ4_K,    // 256 columns, parts of 32: [d][m][8 x (6-bit sub, 6-bit sub minimum)][nibbles]         w = d * sub * q - m * sub minimum
  kQ5_K,    // the same with [fifth bits] before the nibbles
  kQ6_K,    // 256 columns, parts of 16: [nibbles][upper 2 bits][16 x int8 sub][d]                   w = d * sub * (q - 32)
  kIQ4_NL,  // [d][16 x 2 nibbles]                   w = d * table[q]
  kIQ4_XS,  // 256 columns, parts of 32: [d][upper 2 bits, then lower 4 of 8 x sub][nibbles]       w = d * (sub - 32) * table[q]
  kMXFP4,   // [exponent e][16 x 2 nibbles]          w = 2^(e - 128) * table[q]: twice the numbers of FP4 e2m1, so that they are integers
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;    // as GGUF and the flags spell it: "F32", "Q4_1"
  std::size_t block_size;   // elements of a block; 1 for plain types
  std::size_t block_bytes;  // bytes of a block
  bool block_quantised() const { return block_size > 1; }
  /// Columns at whose multiples a row may be cut: super-blocks of 256 at 32, each side then keeps the whole block.
  std::size_t cut_size() const { return block_size > 32 ? 32 : block_size; }
};

const DTypeInfo& info(DType dtype);

/// Upper or lower case; nullopt for a name that is none of the types above. "float32", "float16", "half" and "bfloat16" are accepted.
std::optional<DType> dtype_from_name(std::string_view name);

/// Bytes of a row of `columns` elements. @throws std::invalid_argument if `columns` is not a whole number of blocks.
std::size_t row_bytes(DType dtype, std::size_t columns);

/// Bytes of the whole blocks that hold columns [first, first + columns) of a row. @throws std::invalid_argument if either end is not at a
/// multiple of cut_size().
std::size_t covering_bytes(DType dtype, std::size_t first, std::size_t columns);

/// "F32, F16, BF16, Q8_0, ...": every type above.
std::string dtype_names();

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);  // round to nearest, ties to even; overflow gives infinity
float bfloat16_to_float(std::uint16_t value);
std::uint16_t float_to_bfloat16(float value);  // round to nearest, ties to even; NaN stays NaN

/// Expands `values.size()` elements from stored bytes: the plain definition that every kernel is tested against.
/// @pre `stored` holds row_bytes(dtype, values.size()) bytes.
void dequantise(DType dtype, std::span<const std::byte> stored, std::span<float> values);

/// What the nibbles of IQ4_NL and IQ4_XS, and of MXFP4, stand for.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr std::int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The sub-scales of a super-block, expanded. Part i of 32 columns (Q4_K, Q5_K, IQ4_XS) or 16 (Q2_K, Q3_K, Q6_K).
struct SubScales {
  std::int8_t scales[16] = {};
  std::int8_t minima[16] = {};
};
/// @pre `block` is one whole block of a type with super-blocks.
SubScales sub_scales(DType dtype, const std::byte* block);

}  // namespace lockstep::device
