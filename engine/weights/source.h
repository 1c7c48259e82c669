#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "engine/weights/input_file.h"

namespace lockstep::engine {

class WeightSource;

/// Some rows of a matrix, ready to be taken in any order.
class RowReader {
 public:
  virtual ~RowReader() = default;
  /// Rows [first, first + count) of those it was opened for, dense, as the tensor's dtype. Thread-safe.
  virtual void read(std::size_t first, std::size_t count, std::span<std::byte> to) const = 0;
};

/// A rectangle of a matrix.
struct MatrixSlice {
  std::size_t first_row = 0;
  std::size_t num_rows = 0;
  std::size_t first_column = 0;
  std::size_t num_columns = 0;
};

/// A matrix that is not stored as rows of its type: integers or fp8 numbers with scales in tensors of their own, often transposed.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  /// Reads what `slice` needs, as it is stored, and nothing else; the rows are made from it on demand. @pre `slice` is within the matrix,
  /// its columns are whole blocks. @throws std::runtime_error that names file, tensor and what is wrong.
  virtual std::unique_ptr<RowReader> open(const WeightSource& source, const MatrixSlice& slice) const = 0;
};

/// Where a tensor stands in a file. Checked when the file was opened: its bytes are inside the file, and as many as its type and shape
/// need.
struct StoredTensor {
  std::string name;
  device::DType dtype = device::DType::kF32;
  std::vector<std::size_t> shape;  // outermost first, as in Hugging Face files: [rows, columns]; empty for a scalar
  std::size_t file = 0;            // index into the files of its source
  std::uint64_t offset = 0;        // of its first byte in the file
  std::uint64_t bytes = 0;

  /// Set for a matrix that is put together from several stored tensors; it has no place of its own, only rows of type `dtype`.
  std::shared_ptr<const PackedMatrix> packed = nullptr;
  std::optional<device::DType> load_dtype = std::nullopt;  // what it is best loaded as, where that is not `dtype`
  std::string format = {};                                 // "GPTQ 4-bit", for people; empty: the name of `dtype` says it

  /// As a matrix: the last axis are the columns, all others together the rows. A vector of n is [1, n].
  std::size_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const;
};

/// A tensor of a type that is not read as a weight. It is no error as long as nobody asks for it.
struct UnsupportedTensor {
  std::string name;
  std::string type;  // as the file spells it: "Q4_K", "F8_E4M3"
  std::size_t file = 0;
  // Of safetensors files, where packed matrices are made of such tensors; checked as those of StoredTensor are.
  std::vector<std::size_t> shape = {};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
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
  /// Takes everything apart; nothing can be asked of what is left.
  struct Contents {
    std::vector<InputFile> files;
    std::vector<StoredTensor> tensors;
    std::vector<UnsupportedTensor> unsupported;
  };
  Contents take() && { return {std::move(files_), std::move(tensors_), std::move(unsupported_)}; }

  /// Fills `to` with the tensor's bytes from `byte_offset` on. @throws std::runtime_error that names file, tensor and offset: outside the
  /// tensor, or not readable.
  void read(const StoredTensor& tensor, std::uint64_t byte_offset, std::span<std::byte> to) const;
  /// Rows [first_row, first_row + num_rows), columns [first_column, first_column + num_columns), dense, as stored:
  /// `to` holds num_rows * covering_bytes(dtype, first_column, num_columns) bytes: whole blocks, though the bounds may be inside of
  /// super-blocks, at multiples of 32. Whole rows are one read. Errors as those of read().
  void read_rows(const StoredTensor& tensor, std::size_t first_row, std::size_t num_rows, std::size_t first_column, std::size_t num_columns,
                 std::span<std::byte> to) const;
  /// The same for a slice that will be taken in pieces: of a packed matrix, everything that it needs is read at once.
  std::unique_ptr<RowReader> open_rows(const StoredTensor& tensor, const MatrixSlice& slice) const;
  /// Fills `to` with bytes of a tensor of whichever type: for packed matrices. Errors as those of read().
  void read(const UnsupportedTensor& tensor, std::uint64_t byte_offset, std::span<std::byte> to) const;
  /// Bytes of tensors that were read so far, headers not counted.
  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  /// @throws std::runtime_error where the slice is not within the tensor, or cuts a block.
  void check_slice(const StoredTensor& tensor, const MatrixSlice& slice) const;
  std::string place(const std::string& name, std::size_t file) const;  // "FILE: tensor 'NAME'"
  void read(const std::string& name, std::size_t file, std::uint64_t offset, std::uint64_t bytes, std::uint64_t byte_offset,
            std::span<std::byte> to) const;

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
