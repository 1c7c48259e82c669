#include "tests/support/quantised_folder.h"

#include <array>
#include <cmath>
#include <cstring>

#include "device/dtype.h"

namespace lockstep::test {
namespace {

std::string list(const std::vector<std::size_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return text + "]";
}

/// Packs neighbours into words: place i of a word holds number order[i] of its neighbours.
std::vector<std::uint32_t> pack_neighbours(const std::vector<int>& numbers, unsigned bits, const std::vector<unsigned>& order) {
  const std::size_t per_word = 32 / bits;
  std::vector<std::uint32_t> words;
  for (std::size_t begin = 0; begin < numbers.size(); begin += per_word) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < per_word; ++i) word |= static_cast<std::uint32_t>(numbers[begin + order[i]]) << (bits * i);
    words.push_back(word);
  }
  return words;
}

std::vector<int> transposed(const std::vector<int>& numbers, std::size_t rows, std::size_t columns) {
  std::vector<int> result(numbers.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) result[column * rows + row] = numbers[row * columns + column];
  }
  return result;
}

std::vector<unsigned> in_order(unsigned count) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = i;
  return order;
}

std::vector<float> small_numbers(const std::vector<std::size_t>& shape, std::uint32_t seed, float base) {
  std::size_t count = 1;
  for (const std::size_t axis : shape) count *= axis;
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(base + 0.3f * static_cast<float>(static_cast<int>((i * 37 + seed) % 19) - 9) / 9.0f);
  return values;
}

}  // namespace

SafetensorsBuilder& SafetensorsBuilder::add(const std::string& name, std::string_view type, const std::vector<std::size_t>& shape,
                                            std::string_view bytes) {
  header_ += (header_.empty() ? "{\"" : ", \"") + name + "\": {\"dtype\": \"" + std::string(type) + "\", \"shape\": " + list(shape) +
             ", \"data_offsets\": " + list({data_.size(), data_.size() + bytes.size()}) + "}";
  data_ += bytes;
  return *this;
}

std::string SafetensorsBuilder::str() const {
  const std::string header = header_ + "}";
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data_;
}

std::vector<float> GroupedMatrix::values() const {
  std::vector<float> result(rows * columns);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t at = group[column] * rows + row;
      result[row * columns + column] = static_cast<float>(quants[row * columns + column] - zeros[at]) * device::half_to_float(scales[at]);
    }
  }
  return result;
}

GroupedMatrix random_grouped(std::size_t rows, std::size_t columns, unsigned bits, std::size_t group_size, bool symmetric, bool any_order,
                             std::uint32_t seed) {
  std::uint32_t state = seed * 2654435761u + 12345u;
  const auto below = [&](std::uint32_t bound) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % bound;
  };
  GroupedMatrix matrix{.rows = rows, .columns = columns, .bits = bits, .group = {}, .quants = {}, .zeros = {}, .scales = {}};
  const std::size_t groups = (columns + group_size - 1) / group_size;
  const std::uint32_t range = 1u << bits;
  for (std::size_t column = 0; column < columns; ++column)
    matrix.group.push_back(any_order ? below(static_cast<std::uint32_t>(groups)) : column / group_size);
  for (std::size_t i = 0; i < rows * columns; ++i) matrix.quants.push_back(static_cast<int>(below(range)));
  for (std::size_t i = 0; i < groups * rows; ++i) {
    matrix.zeros.push_back(symmetric ? static_cast<int>(range / 2) : static_cast<int>(below(range)));
    const float spread = 3.0f / (static_cast<float>(range) * static_cast<float>(columns));
    matrix.scales.push_back(device::float_to_half(spread * (1.0f + static_cast<float>(below(1000)) * 0.01f)));
  }
  return matrix;
}

void add_gptq(SafetensorsBuilder& file, const std::string& module, const GroupedMatrix& matrix, bool version_2) {
  const std::size_t per_word = 32 / matrix.bits;
  const auto order = in_order(static_cast<unsigned>(per_word));
  // Along the columns of the matrix: the words of a row are those of the transposed file's column.
  const auto words = pack_neighbours(matrix.quants, matrix.bits, order);
  std::vector<int> as_numbers(words.size());
  std::memcpy(as_numbers.data(), words.data(), words.size() * sizeof(int));
  file.add(module + ".qweight", "I32", {matrix.columns / per_word, matrix.rows},
           transposed(as_numbers, matrix.rows, matrix.columns / per_word));
  auto zeros = pack_neighbours(matrix.zeros, matrix.bits, order);
  if (!version_2) {
    for (std::uint32_t& word : zeros) word -= matrix.bits == 4 ? 0x11111111u : 0x01010101u;
  }
  file.add(module + ".qzeros", "I32", {matrix.groups(), matrix.rows / per_word}, zeros);
  file.add(module + ".scales", "F16", {matrix.groups(), matrix.rows}, matrix.scales);
  file.add(module + ".g_idx", "I32", {matrix.columns}, std::vector<std::int32_t>(matrix.group.begin(), matrix.group.end()));
}

void add_awq(SafetensorsBuilder& file, const std::string& module, const GroupedMatrix& matrix) {
  const std::vector<unsigned> order{0, 2, 4, 6, 1, 3, 5, 7};
  file.add(module + ".qweight", "I32", {matrix.columns, matrix.rows / 8},
           pack_neighbours(transposed(matrix.quants, matrix.rows, matrix.columns), 4, order));
  file.add(module + ".qzeros", "I32", {matrix.groups(), matrix.rows / 8}, pack_neighbours(matrix.zeros, 4, order));
  file.add(module + ".scales", "F16", {matrix.groups(), matrix.rows}, matrix.scales);
}

std::vector<float> add_mxfp4(SafetensorsBuilder& file, const std::string& name, std::size_t experts, std::size_t rows, std::size_t columns,
                             std::uint32_t seed) {
  constexpr std::array<float, 8> kNumbers{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  std::string numbers, exponents;
  std::vector<float> values;
  std::uint32_t state = seed;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (std::size_t block = 0; block < experts * rows * columns / 32; ++block) {
    const std::uint32_t exponent = 118 + next() % 7;
    exponents += static_cast<char>(exponent);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint32_t byte = next() & 255;
      numbers += static_cast<char>(byte);
      for (const std::uint32_t number : {byte & 15, byte >> 4}) {
        const float value = std::ldexp(kNumbers[number & 7], static_cast<int>(exponent) - 127);
        values.push_back(number >= 8 ? 0.0f - value : value);
      }
    }
  }
  file.add(name + "_blocks", "U8", {experts, rows, columns / 32, 16}, numbers);
  file.add(name + "_scales", "U8", {experts, rows, columns / 32}, exponents);
  return values;
}

void TwoFolders::add_floats(const std::string& name, const std::vector<std::size_t>& shape, float base) {
  const std::vector<float> values = small_numbers(shape, seed_++, base);
  packed_file_.add(name, "F32", shape, values);
  plain_file_.add(name, "F32", shape, values);
}

void TwoFolders::write(const std::string& packed_config, const std::string& plain_config) const {
  packed_.write("config.json", packed_config);
  packed_.write("model.safetensors", packed_file_.str());
  plain_.write("config.json", plain_config);
  plain_.write("model.safetensors", plain_file_.str());
}

}  // namespace lockstep::test
