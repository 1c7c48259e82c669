// The layout of MXFP4 in the checkpoints of gpt-oss (numbers: OCP Microscaling Formats, 2023), and the blocks of GGUF files that hold the
// same.
#include <utility>
#include <vector>

#include "engine/weights/packed_rows.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kColumns = 32, kBytes = 16;  // of a block

class Mxfp4Rows final : public RowReader {
 public:
  Mxfp4Rows(const WeightSource& source, const Mxfp4Parts& parts, const MatrixSlice& slice)
      : blocks_(slice.num_columns / kColumns),
        numbers_(read_units(source, parts.blocks.tensor, parts.columns, kColumns, kBytes, slice)),
        exponents_(read_units(source, parts.scales.tensor, parts.columns, kColumns, 1, slice)) {}

  void read(std::size_t first, std::size_t count, std::span<std::byte> to) const override {
    for (std::size_t block = first * blocks_; block < (first + count) * blocks_; ++block, to = to.subspan(1 + kBytes)) {
      to[0] = exponents_[block];
      reorder(&numbers_[block * kBytes], &to[1]);
    }
  }

 private:
  /// From neighbours in a byte to numbers 16 apart: byte j has number j in its low half, j + 16 in the high one.
  static void reorder(const std::byte* from, std::byte* to) {
    const auto number = [&](std::size_t i) { return from[i / 2] >> (i % 2 * 4) & std::byte{15}; };
    for (std::size_t j = 0; j < kBytes; ++j) to[j] = number(j) | number(j + kBytes) << 4;
  }

  std::size_t blocks_;  // of a row of the slice
  std::vector<std::byte> numbers_;
  std::vector<std::byte> exponents_;
};

}  // namespace

std::shared_ptr<const PackedMatrix> make_mxfp4_matrix(Mxfp4Parts parts) {
  return std::make_shared<MatrixOfParts<Mxfp4Rows, Mxfp4Parts>>(std::move(parts));
}

}  // namespace lockstep::engine
