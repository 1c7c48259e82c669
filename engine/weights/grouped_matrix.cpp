// The packed layouts of GPTQ (AutoGPTQ, GPTQModel) and AWQ (AutoAWQ, "gemm"), as their quantisers write them.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/weights/packed_rows.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using device::DType;

/// In which four bits of a word AWQ keeps each of eight neighbours: nibble i holds neighbour {0, 2, 4, 6, 1, 3, 5, 7}[i].
constexpr std::array<unsigned, 8> kAwqNibble{0, 4, 1, 5, 2, 6, 3, 7};

/// Rows [first, first + count) of a matrix of 4-byte words, columns [begin, begin + width) of `stride`.
std::vector<std::uint32_t> read_words(const WeightSource& source, const UnsupportedTensor& tensor, std::size_t stride, std::size_t first,
                                      std::size_t count, std::size_t begin, std::size_t width) {
  std::vector<std::uint32_t> words(count * width);
  const auto bytes = std::as_writable_bytes(std::span(words));
  if (width == stride) {
    source.read(tensor, first * stride * 4, bytes);
    return words;
  }
  for (std::size_t row = 0; row < count; ++row) {
    source.read(tensor, ((first + row) * stride + begin) * 4, bytes.subspan(row * width * 4, width * 4));
  }
  return words;
}

class GroupedRows final : public RowReader {
 public:
  GroupedRows(const WeightSource& source, const GroupedParts& parts, const MatrixSlice& slice)
      : parts_(parts), slice_(slice), per_word_log2_(parts.bits == 4 ? 3 : 2), mask_((1u << parts.bits) - 1) {
    if (slice.num_rows == 0 || slice.num_columns == 0) return;
    read_order(source);
    read_quants(source);
    read_zeros(source);
    read_scales(source);
  }

  void read(std::size_t first, std::size_t count, std::span<std::byte> to) const override {
    const std::size_t bytes = device::row_bytes(parts_.dtype, slice_.num_columns);
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = to.subspan(i * bytes, bytes);
      if (parts_.dtype == DType::kF32) {
        write_floats(first + i, row);
      } else {
        write_blocks(first + i, row);
      }
    }
  }

 private:
  /// Which group each column of the slice belongs to, and the range of groups that is needed.
  void read_order(const WeightSource& source) {
    group_.resize(slice_.num_columns);
    for (std::size_t i = 0; i < group_.size(); ++i) group_[i] = (slice_.first_column + i) / parts_.group_size;
    if (parts_.order) {
      const auto stated = read_words(source, parts_.order->tensor, parts_.columns, 0, 1, 0, parts_.columns);
      for (std::size_t i = 0; i < group_.size(); ++i) {
        const std::size_t column = slice_.first_column + i;
        const std::uint32_t group = stated[column];
        if (group >= parts_.groups || (!parts_.any_order && group != group_[i])) {
          fail(source, parts_.order->tensor,
               "puts column " + std::to_string(column) + " into group " + std::to_string(group) +
                   (parts_.any_order ? ", of " + std::to_string(parts_.groups) : ", although " + parts_.source + " says desc_act: false"));
        }
        group_[i] = group;
      }
    }
    const auto [least, most] = std::minmax_element(group_.begin(), group_.end());
    first_group_ = *least;
    num_groups_ = *most + 1 - first_group_;
    for (std::size_t& group : group_) group -= first_group_;
  }

  void read_quants(const WeightSource& source) {
    if (parts_.awq) {
      first_word_ = (slice_.first_row >> per_word_log2_);
      width_ = ((slice_.first_row + slice_.num_rows - 1) >> per_word_log2_) + 1 - first_word_;
      quants_ = read_words(source, parts_.quants.tensor, (parts_.rows >> per_word_log2_), slice_.first_column, slice_.num_columns,
                           first_word_, width_);
      return;
    }
    first_word_ = (slice_.first_column >> per_word_log2_);
    width_ = slice_.num_rows;
    const std::size_t words = ((slice_.first_column + slice_.num_columns - 1) >> per_word_log2_) + 1 - first_word_;
    quants_ = read_words(source, parts_.quants.tensor, parts_.rows, first_word_, words, slice_.first_row, slice_.num_rows);
  }

  void read_zeros(const WeightSource& source) {
    const std::size_t begin = (slice_.first_row >> per_word_log2_);
    const std::size_t width = ((slice_.first_row + slice_.num_rows - 1) >> per_word_log2_) + 1 - begin;
    auto words = read_words(source, parts_.zeros.tensor, (parts_.rows >> per_word_log2_), first_group_, num_groups_, begin, width);
    if (parts_.zero_less_one) {  // one was taken from each number of a word at once, carries included
      for (std::uint32_t& word : words) word += parts_.bits == 4 ? 0x11111111u : 0x01010101u;
    }
    zeros_.resize(num_groups_ * slice_.num_rows);
    const int middle = 1 << (parts_.bits - 1);
    for (std::size_t group = 0; group < num_groups_; ++group) {
      for (std::size_t i = 0; i < slice_.num_rows; ++i) {
        const std::size_t row = slice_.first_row + i;
        const int zero = static_cast<int>(words[group * width + (row >> per_word_log2_) - begin] >> shift_in_row(row) & mask_);
        if (parts_.symmetric && zero != middle) {
          fail(source, parts_.zeros.tensor,
               "has zero point " + std::to_string(zero) + " in group " + std::to_string(first_group_ + group) + " of row " +
                   std::to_string(row) + ", although " + parts_.source + " says sym: true");
        }
        zeros_[group * slice_.num_rows + i] = static_cast<std::int16_t>(zero);
      }
    }
  }

  void read_scales(const WeightSource& source) {
    const DType type = *parts_.scales.float_type;
    const std::size_t stride = device::row_bytes(type, parts_.rows);
    const std::size_t width = device::row_bytes(type, slice_.num_rows);
    stored_scales_.resize(num_groups_ * width);
    for (std::size_t group = 0; group < num_groups_; ++group) {
      source.read(parts_.scales.tensor, (first_group_ + group) * stride + device::row_bytes(type, slice_.first_row),
                  std::span(stored_scales_).subspan(group * width, width));
    }
    scales_.resize(num_groups_ * slice_.num_rows);
    device::dequantise(type, stored_scales_, scales_);
  }

  /// Where in its word the number of a row stands, if words hold neighbouring rows.
  unsigned shift_in_row(std::size_t row) const {
    const auto within = static_cast<unsigned>(row & ((1u << per_word_log2_) - 1));
    return parts_.bits * (parts_.awq ? kAwqNibble[within] : within);
  }

  /// q - zero of row i, column j of the slice.
  int quantum(std::size_t i, std::size_t j) const {
    std::uint32_t word = 0;
    unsigned shift = 0;
    if (parts_.awq) {
      const std::size_t row = slice_.first_row + i;
      word = quants_[j * width_ + (row >> per_word_log2_) - first_word_];
      shift = shift_in_row(row);
    } else {
      const std::size_t column = slice_.first_column + j;
      word = quants_[((column >> per_word_log2_) - first_word_) * width_ + i];
      shift = parts_.bits * static_cast<unsigned>(column & ((1u << per_word_log2_) - 1));
    }
    return static_cast<int>(word >> shift & mask_) - zeros_[group_[j] * slice_.num_rows + i];
  }

  void write_floats(std::size_t i, std::span<std::byte> to) const {
    for (std::size_t j = 0; j < slice_.num_columns; ++j) {
      const float value = static_cast<float>(quantum(i, j)) * scales_[group_[j] * slice_.num_rows + i];
      std::memcpy(&to[j * sizeof value], &value, sizeof value);
    }
  }

  /// Blocks of 32 columns, which are of one group: its F16 scale as it is, and q - zero.
  void write_blocks(std::size_t i, std::span<std::byte> to) const {
    const std::size_t block_bytes = device::info(parts_.dtype).block_bytes;
    for (std::size_t begin = 0; begin < slice_.num_columns; begin += 32, to = to.subspan(block_bytes)) {
      std::memcpy(to.data(), &stored_scales_[(group_[begin] * slice_.num_rows + i) * 2], 2);
      const auto quants = to.subspan(2);
      if (parts_.dtype == DType::kQ8_0) {
        for (std::size_t j = 0; j < 32; ++j) quants[j] = static_cast<std::byte>(quantum(i, begin + j));
      } else {
        for (std::size_t j = 0; j < 16; ++j)
          quants[j] = static_cast<std::byte>((quantum(i, begin + j) + 8) | (quantum(i, begin + j + 16) + 8) << 4);
      }
    }
  }

  [[noreturn]] static void fail(const WeightSource& source, const UnsupportedTensor& tensor, const std::string& message) {
    throw std::runtime_error(source.files().at(tensor.file).path().string() + ": tensor " + quote(tensor.name) + " " + message);
  }

  const GroupedParts& parts_;
  MatrixSlice slice_;
  unsigned per_word_log2_;  // numbers in a word
  std::uint32_t mask_;
  std::vector<std::size_t> group_;  // of each column, less first_group_
  std::size_t first_group_ = 0;
  std::size_t num_groups_ = 0;
  std::vector<std::uint32_t> quants_;  // gptq: [words of columns][rows]; awq: [columns][words of rows]
  std::size_t first_word_ = 0;
  std::size_t width_ = 0;
  std::vector<std::int16_t> zeros_;  // [groups][rows]
  std::vector<float> scales_;        // likewise
  std::vector<std::byte> stored_scales_;
};

}  // namespace

DType group_type(const GroupedParts& parts) {
  const bool whole_blocks = parts.columns % 32 == 0 && (parts.group_size % 32 == 0 || parts.groups == 1);
  if (parts.scales.float_type != DType::kF16 || parts.any_order || !whole_blocks) return DType::kF32;
  if (parts.bits == 4) return parts.symmetric ? DType::kQ4_0 : DType::kQ8_0;
  return parts.symmetric ? DType::kQ8_0 : DType::kF32;  // 8 bits less any zero point are up to 9 bits and a sign
}

std::shared_ptr<const PackedMatrix> make_grouped_matrix(GroupedParts parts) {
  return std::make_shared<MatrixOfParts<GroupedRows, GroupedParts>>(std::move(parts));
}

}  // namespace lockstep::engine
