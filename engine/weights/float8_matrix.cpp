// fp8 formats: Micikevicius et al., FP8 Formats for Deep Learning (2022): e4m3 has no infinities, and one NaN of each sign.
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/weights/packed_rows.h"

namespace lockstep::engine {
namespace {

float value_of(unsigned code, bool e5m2) {
  if (e5m2) return device::half_to_float(static_cast<std::uint16_t>(code << 8));  // the upper half of an F16
  const float sign = (code & 0x80u) != 0 ? -1.0f : 1.0f;
  const int exponent = static_cast<int>((code >> 3) & 15u);
  const auto mantissa = static_cast<float>(code & 7u);
  if ((code & 0x7Fu) == 0x7Fu) return std::copysign(std::nanf(""), sign);
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
}

std::array<float, 256> table_of(bool e5m2) {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < table.size(); ++code) table[code] = value_of(code, e5m2);
  return table;
}

class Float8Rows final : public RowReader {
 public:
  Float8Rows(const WeightSource& source, const Float8Parts& parts, const MatrixSlice& slice)
      : parts_(parts),
        slice_(slice),
        table_(table_of(parts.e5m2)),
        codes_(read_units(source, parts.weight.tensor, parts.columns, 1, 1, slice)) {
    read_scales(source);
  }

  void read(std::size_t first, std::size_t count, std::span<std::byte> to) const override {
    std::vector<float> row(slice_.num_columns);
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* codes = &codes_[(first + i) * slice_.num_columns];
      const float* scales = &scales_[((slice_.first_row + first + i) / parts_.block_rows - first_scale_row_) * parts_.scale_columns];
      for (std::size_t column = 0; column < row.size(); ++column) {
        row[column] = table_[std::to_integer<std::size_t>(codes[column])] * scales[(slice_.first_column + column) / parts_.block_columns];
      }
      std::memcpy(&to[i * row.size() * sizeof(float)], row.data(), row.size() * sizeof(float));
    }
  }

 private:
  /// Rows of scales as they are needed: there are few.
  void read_scales(const WeightSource& source) {
    first_scale_row_ = slice_.first_row / parts_.block_rows;
    const std::size_t rows = slice_.num_rows == 0 ? 0 : (slice_.first_row + slice_.num_rows - 1) / parts_.block_rows + 1 - first_scale_row_;
    scales_.resize(rows * parts_.scale_columns);
    const std::size_t bytes = device::row_bytes(*parts_.scale.float_type, parts_.scale_columns);
    std::vector<std::byte> stored(rows * bytes);
    source.read(parts_.scale.tensor, first_scale_row_ * bytes, stored);
    device::dequantise(*parts_.scale.float_type, stored, scales_);
  }

  const Float8Parts& parts_;
  MatrixSlice slice_;
  std::array<float, 256> table_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;  // [rows of them from first_scale_row_ on][scale_columns]
  std::size_t first_scale_row_ = 0;
};

}  // namespace

std::shared_ptr<const PackedMatrix> make_float8_matrix(Float8Parts parts) {
  return std::make_shared<MatrixOfParts<Float8Rows, Float8Parts>>(std::move(parts));
}

}  // namespace lockstep::engine
