#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/weights/source.h"

namespace lockstep::engine {

/// Rows of a stored matrix, or elements of a stored vector, that stand together in the new tensor, too.
struct RowRun {
  const StoredTensor* stored = nullptr;
  std::size_t row = 0;  // the first, in the new tensor
  std::size_t count = 0;
  std::size_t from = 0;          // the first, in the stored one: of a transposed matrix a column
  std::size_t first_column = 0;  // of a transposed matrix: the stored row that is column 0
};

/// A tensor on its way into a GGUF file: put together from rows of stored tensors, or from values.
struct SourceTensor {
  std::string name;                // in the GGUF file
  std::vector<std::size_t> shape;  // there, outermost first
  std::vector<RowRun> runs = {};   // ascending, without gaps
  bool of_elements = false;        // runs count elements of vectors; it is read as a whole
  bool transposed = false;         // stored [in, out]
  float offset = 0.0f;             // added to each element
  std::vector<float> values = {};  // of a tensor that is stored nowhere, without runs

  std::size_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const;  // all axes but the last together
};

/// Some rows of the new tensor, all from one stored tensor, in its type.
struct SourceRows {
  const StoredTensor* stored = nullptr;
  device::DType dtype = device::DType::kF32;
  std::size_t row = 0;  // the first, in the new tensor
  std::size_t count = 0;
  std::vector<std::byte> bytes;
};

/// Reads rows [first, first + count) of the new tensor (all of one that is of elements), a stored tensor at a time and each once: rows that
/// change places do so within a head, or stand not far apart. @throws std::runtime_error that names file and tensor.
std::vector<SourceRows> read_rows(const WeightSource& weights, const SourceTensor& tensor, std::size_t first, std::size_t count);

}  // namespace lockstep::engine
