#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "engine/weights/input_file.h"

namespace lockstep::engine {

/// Where a tensor stands in a file. Checked when the file was opened: its bytes are inside the file, and as many as its type and shape
/// need.
struct StoredTensor {
  std::string name;
  device::DType dtype = device::DType::kF32;
  std::vector<std::size_t> shape;  // outermost first, as in Hugging Face files: [rows, columns]; empty for a scalar
  std::size_t file = 0;            // index into the files of its source
  std::uint64_t offset = 0;        // of its first byte in the file
  std::uint64_t bytes = 0;

  /// As a matrix: the last axis are the columns, all others together the rows. A vector of n is [1, n].
  std::size_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const;
};

/// A tensor of a type that cannot be read yet. It is no error as long as nobody asks for it.
struct UnsupportedTensor {
  std::string name;
  std::string type;  // as the file spells it: "Q4_K", "F8_E4M3"
  std::size_t file = 0;
};

/// The tensors of one model, in one file or several. Nothing but headers is read before read() or read_rows() asks for bytes, and then no
/// byte that is not asked for. Files are read with pread and never mapped: a file that is cut off meanwhile is an error and not a signal.
/// Thread-safe.
class WeightSource {
 public:
  /// @throws std::runtime_error if two tensors have the same name.
  WeightSource(std::vector<InputFile> files, std::vector<StoredTensor> tensors, std::vector<UnsupportedTensor> unsupported);

  /// nullptr if there is none. @throws std::runtime_error that names file, tensor and type if the type is not supported.
  const StoredTensor* find(std::string_view name) const;
  /// The tensor, checked to have this shape. @throws std::runtime_error that names what is missing, or both shapes.
  const StoredTensor& require(std::string_view name, std::span<const std::size_t> shape) const;
  /// Whether there is such a tensor, of a supported type or not.
  bool contains(std::string_view name) const;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of the files
  const std::vector<UnsupportedTensor>& unsupported() const { return unsupported_; }
  const std::vector<InputFile>& files() const { return files_; }

  /// Fills `to` with the tensor's bytes from `byte_offset` on. @throws std::runtime_error that names file, tensor and offset: outside the
  /// tensor, or not readable.
  void read(const StoredTensor& tensor, std::uint64_t byte_offset, std::span<std::byte> to) const;
  /// Rows [first_row, first_row + num_rows), columns [first_column, first_column + num_columns), dense, as stored:
  /// `to` holds num_rows * covering_bytes(dtype, first_column, num_columns) bytes: whole blocks, though the bounds may be inside of
  /// super-blocks, at multiples of 32. Whole rows are one read. Errors as those of read().
  void read_rows(const StoredTensor& tensor, std::size_t first_row, std::size_t num_rows, std::size_t first_column, std::size_t num_columns,
                 std::span<std::byte> to) const;
  /// Bytes of tensors that were read so far, headers not counted.
  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  std::string place(const StoredTensor& tensor) const;  // "FILE: tensor 'NAME'"

  std::vector<InputFile> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<UnsupportedTensor> unsupported_;
  std::map<std::string, std::size_t, std::less<>> index_;              // into tensors_
  std::map<std::string, std::size_t, std::less<>> unsupported_index_;  // into unsupported_
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

/// "[2, 3]"
std::string shape_text(std::span<const std::size_t> shape);

}  // namespace lockstep::engine
