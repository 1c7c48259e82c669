#include "engine/quantise/source_tensor.h"

#include <algorithm>
#include <cstring>

namespace lockstep::engine {
namespace {

/// All of a tensor that is made of vectors, as floats.
SourceRows read_elements(const WeightSource& weights, const SourceTensor& tensor) {
  SourceRows rows{.stored = tensor.runs.front().stored, .count = tensor.rows()};
  rows.bytes.resize(rows.count * tensor.columns() * sizeof(float));
  std::vector<float> values;
  const StoredTensor* read = nullptr;
  for (const RowRun& run : tensor.runs) {
    if (run.stored != read) {
      std::vector<std::byte> bytes(run.stored->bytes);
      weights.read(*run.stored, 0, bytes);
      values.resize(run.stored->rows() * run.stored->columns());
      device::dequantise(run.stored->dtype, bytes, values);
      read = run.stored;
    }
    std::memcpy(&rows.bytes[run.row * sizeof(float)], &values.at(run.from), run.count * sizeof(float));
  }
  return rows;
}

/// Runs within the rows that are wanted; the borders cut.
std::vector<RowRun> runs_within(const SourceTensor& tensor, std::size_t first, std::size_t count) {
  std::vector<RowRun> runs;
  auto run = std::upper_bound(tensor.runs.begin(), tensor.runs.end(), first,
                              [](std::size_t row, const RowRun& each) { return row < each.row + each.count; });
  for (; run != tensor.runs.end() && run->row < first + count; ++run) {
    const std::size_t begin = std::max(run->row, first), end = std::min(run->row + run->count, first + count);
    runs.push_back({run->stored, begin, end - begin, run->from + begin - run->row, run->first_column});
  }
  return runs;
}

/// `runs` of one stored matrix, from what lies between the first and the last of them.
SourceRows read_group(const WeightSource& weights, const SourceTensor& tensor, std::span<const RowRun> runs) {
  const StoredTensor& stored = *runs.front().stored;
  SourceRows rows{.stored = &stored, .dtype = stored.dtype, .row = runs.front().row};
  std::size_t low = runs.front().from, high = 0;
  for (const RowRun& run : runs) {
    low = std::min(low, run.from);
    high = std::max(high, run.from + run.count);
    rows.count += run.count;
  }
  const std::size_t row_bytes = device::row_bytes(stored.dtype, tensor.columns());
  rows.bytes.resize(rows.count * row_bytes);
  if (!tensor.transposed) {
    std::vector<std::byte> read((high - low) * row_bytes);
    weights.read_rows(stored, low, high - low, 0, tensor.columns(), read);
    for (const RowRun& run : runs)
      std::memcpy(&rows.bytes[(run.row - rows.row) * row_bytes], &read[(run.from - low) * row_bytes], run.count * row_bytes);
    return rows;
  }
  const std::size_t size = device::info(stored.dtype).block_bytes, columns = tensor.columns();
  std::vector<std::byte> read(columns * (high - low) * size);
  weights.read_rows(stored, runs.front().first_column, columns, low, high - low, read);
  for (const RowRun& run : runs) {
    for (std::size_t row = 0; row < run.count; ++row) {
      for (std::size_t column = 0; column < columns; ++column)
        std::memcpy(&rows.bytes[(run.row - rows.row + row) * row_bytes + column * size],
                    &read[(column * (high - low) + run.from - low + row) * size], size);
    }
  }
  return rows;
}

}  // namespace

std::size_t SourceTensor::rows() const {
  std::size_t count = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) count *= shape[axis];
  return count;
}

std::vector<SourceRows> read_rows(const WeightSource& weights, const SourceTensor& tensor, std::size_t first, std::size_t count) {
  std::vector<SourceRows> read;
  if (tensor.of_elements) {
    read.push_back(read_elements(weights, tensor));
    return read;
  }
  const std::vector<RowRun> runs = runs_within(tensor, first, count);
  for (auto begin = runs.begin(); begin != runs.end();) {
    const auto end = std::find_if(
        begin, runs.end(), [&](const RowRun& run) { return run.stored != begin->stored || run.first_column != begin->first_column; });
    read.push_back(read_group(weights, tensor, {begin, end}));
    begin = end;
  }
  return read;
}

}  // namespace lockstep::engine
