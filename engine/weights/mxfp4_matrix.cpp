// The layout of MXFP4 in the checkpoints of gpt-oss (numbers: OCP Microscaling Formats, 2023), and the blocks of GGUF files that hold the
// same.
#include <utility>
#include <vector>

#include "engine/weights/packed_matrix.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kColumns = 32, kBytes = 16;  // of a block

class Mxfp4Rows final : public RowReader {
 public:
  Mxfp4Rows(const WeightSource& source, const Mxfp4Parts& parts, const MatrixSlice& slice) : blocks_(slice.num_columns / kColumns) {
    numbers_ = read_rows(source, parts.blocks.tensor, parts.columns / kColumns, slice, kBytes);
    exponents_ = read_rows(source, parts.scales.tensor, parts.columns / kColumns, slice, 1);
  }

  void read(std::size_t first, std::size_t count, std::span<std::byte> to) const override {
    for (std::size_t block = first * blocks_; block < (first + count) * blocks_; ++block, to = to.subspan(1 + kBytes)) {
      to[0] = exponents_[block];
      reorder(&numbers_[block * kBytes], &to[1]);
    }
  }

 private:
  /// `size` bytes for each block of the slice.
  static std::vector<std::byte> read_rows(const WeightSource& source, const UnsupportedTensor& tensor, std::size_t blocks_of_row,
                                          const MatrixSlice& slice, std::size_t size) {
    const std::size_t width = slice.num_columns / kColumns * size, stride = blocks_of_row * size;
    std::vector<std::byte> bytes(slice.num_rows * width);
    if (width == stride) {
      source.read(tensor, slice.first_row * stride, bytes);
      return bytes;
    }
    for (std::size_t row = 0; row < slice.num_rows; ++row) {
      source.read(tensor, (slice.first_row + row) * stride + slice.first_column / kColumns * size,
                  std::span(bytes).subspan(row * width, width));
    }
    return bytes;
  }

  /// From neighbours in a byte to numbers 16 apart: byte j has number j in its low half, j + 16 in the high one.
  static void reorder(const std::byte* from, std::byte* to) {
    const auto number = [&](std::size_t i) { return from[i / 2] >> (i % 2 * 4) & std::byte{15}; };
    for (std::size_t j = 0; j < kBytes; ++j) to[j] = number(j) | number(j + kBytes) << 4;
  }

  std::size_t blocks_;  // of a row of the slice
  std::vector<std::byte> numbers_;
  std::vector<std::byte> exponents_;
};

class Mxfp4Matrix final : public PackedMatrix {
 public:
  explicit Mxfp4Matrix(Mxfp4Parts parts) : parts_(std::move(parts)) {}
  std::unique_ptr<RowReader> open(const WeightSource& source, const MatrixSlice& slice) const override {
    return std::make_unique<Mxfp4Rows>(source, parts_, slice);
  }

 private:
  Mxfp4Parts parts_;
};

}  // namespace

std::shared_ptr<const PackedMatrix> make_mxfp4_matrix(Mxfp4Parts parts) { return std::make_shared<Mxfp4Matrix>(std::move(parts)); }

}  // namespace lockstep::engine
