#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/weights/packed_matrix.h"

namespace lockstep::engine {

/// The packed matrix whose rows a Rows(source, parts, slice) makes.
template <class Rows, class Parts>
class MatrixOfParts final : public PackedMatrix {
 public:
  explicit MatrixOfParts(Parts parts) : parts_(std::move(parts)) {}
  std::unique_ptr<RowReader> open(const WeightSource& source, const MatrixSlice& slice) const override {
    return std::make_unique<Rows>(source, parts_, slice);
  }

 private:
  Parts parts_;
};

/// What the rows of `slice` hold in a tensor of `unit` bytes for so many columns each, `columns` in a row. @pre the slice is cut at units.
inline std::vector<std::byte> read_units(const WeightSource& source, const UnsupportedTensor& tensor, std::size_t columns,
                                         std::size_t columns_of_unit, std::size_t unit, const MatrixSlice& slice) {
  const std::size_t stride = columns / columns_of_unit * unit, width = slice.num_columns / columns_of_unit * unit;
  std::vector<std::byte> bytes(slice.num_rows * width);
  if (width == stride) {
    source.read(tensor, slice.first_row * stride, bytes);
    return bytes;
  }
  const std::size_t first = slice.first_column / columns_of_unit * unit;
  for (std::size_t row = 0; row < slice.num_rows; ++row)
    source.read(tensor, (slice.first_row + row) * stride + first, std::span(bytes).subspan(row * width, width));
  return bytes;
}

}  // namespace lockstep::engine
