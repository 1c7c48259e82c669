#include "engine/weights/source.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/weights/quote.h"

namespace lockstep::engine {

std::size_t StoredTensor::rows() const {
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return rows;
}

std::string shape_text(std::span<const std::size_t> shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  return text + "]";
}

WeightSource::WeightSource(std::vector<InputFile> files, std::vector<StoredTensor> tensors, std::vector<UnsupportedTensor> unsupported)
    : files_(std::move(files)), tensors_(std::move(tensors)), unsupported_(std::move(unsupported)) {
  const auto refuse_second = [&](const std::string& name, std::size_t file) {
    throw std::runtime_error(files_.at(file).path().string() + ": there are two tensors " + quote(name));
  };
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) refuse_second(tensors_[i].name, tensors_[i].file);
  }
  for (std::size_t i = 0; i < unsupported_.size(); ++i) {
    const std::string& name = unsupported_[i].name;
    if (index_.contains(name) || !unsupported_index_.emplace(name, i).second) refuse_second(name, unsupported_[i].file);
  }
}

std::string WeightSource::place(const std::string& name, std::size_t file) const {
  return files_.at(file).path().string() + ": tensor " + quote(name);
}

const StoredTensor* WeightSource::find(std::string_view name) const {
  if (const auto found = index_.find(name); found != index_.end()) return &tensors_[found->second];
  const auto refused = unsupported_index_.find(name);
  if (refused == unsupported_index_.end()) return nullptr;
  const UnsupportedTensor& tensor = unsupported_[refused->second];
  throw std::runtime_error(files_.at(tensor.file).path().string() + ": tensor " + quote(tensor.name) + " has type " + tensor.type +
                           ", which is not supported; supported are " + device::dtype_names());
}

const StoredTensor& WeightSource::require(std::string_view name, std::span<const std::size_t> shape) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    const std::string where = files_.empty() ? "" : files_[0].path().string() + (files_.size() > 1 ? " and the files beside it: " : ": ");
    throw std::runtime_error(where + "tensor " + quote(name) + " is missing");
  }
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    throw std::runtime_error(place(tensor->name, tensor->file) + " has shape " + shape_text(tensor->shape) +
                             ", but the configuration makes it " + shape_text(shape));
  }
  return *tensor;
}

bool WeightSource::contains(std::string_view name) const { return index_.contains(name) || unsupported_index_.contains(name); }

void WeightSource::read(const std::string& name, std::size_t file, std::uint64_t offset, std::uint64_t bytes, std::uint64_t byte_offset,
                        std::span<std::byte> to) const {
  if (byte_offset > bytes || to.size() > bytes - byte_offset) {
    throw std::runtime_error(place(name, file) + ": " + std::to_string(to.size()) + " bytes from its byte " + std::to_string(byte_offset) +
                             " on are wanted, but it has " + std::to_string(bytes));
  }
  files_.at(file).read(offset + byte_offset, to, "tensor " + quote(name));
  bytes_read_.fetch_add(to.size(), std::memory_order_relaxed);
}

void WeightSource::read(const StoredTensor& tensor, std::uint64_t byte_offset, std::span<std::byte> to) const {
  if (tensor.packed) throw std::logic_error(place(tensor.name, tensor.file) + " is packed: it has rows, but no bytes of its own");
  read(tensor.name, tensor.file, tensor.offset, tensor.bytes, byte_offset, to);
}

void WeightSource::read(const UnsupportedTensor& tensor, std::uint64_t byte_offset, std::span<std::byte> to) const {
  read(tensor.name, tensor.file, tensor.offset, tensor.bytes, byte_offset, to);
}

namespace {

/// Rows that stand in the file as they are wanted.
class PlainRows final : public RowReader {
 public:
  PlainRows(const WeightSource& source, const StoredTensor& tensor, const MatrixSlice& slice)
      : source_(source), tensor_(tensor), slice_(slice) {}
  void read(std::size_t first, std::size_t count, std::span<std::byte> to) const override {
    source_.read_rows(tensor_, slice_.first_row + first, count, slice_.first_column, slice_.num_columns, to);
  }

 private:
  const WeightSource& source_;
  const StoredTensor& tensor_;
  MatrixSlice slice_;
};

}  // namespace

std::unique_ptr<RowReader> WeightSource::open_rows(const StoredTensor& tensor, const MatrixSlice& slice) const {
  if (!tensor.packed) return std::make_unique<PlainRows>(*this, tensor, slice);
  check_slice(tensor, slice);
  return tensor.packed->open(*this, slice);
}

void WeightSource::check_slice(const StoredTensor& tensor, const MatrixSlice& slice) const {
  const std::size_t rows = tensor.rows();
  const std::size_t columns = tensor.columns();
  if (slice.first_row > rows || slice.num_rows > rows - slice.first_row || slice.first_column > columns ||
      slice.num_columns > columns - slice.first_column) {
    throw std::runtime_error(place(tensor.name, tensor.file) + ": rows " + std::to_string(slice.first_row) + " + " +
                             std::to_string(slice.num_rows) + ", columns " + std::to_string(slice.first_column) + " + " +
                             std::to_string(slice.num_columns) + " are not within its shape " + shape_text(tensor.shape));
  }
  const std::size_t cut = device::info(tensor.dtype).cut_size();
  if (slice.first_column % cut != 0 || slice.num_columns % cut != 0) {
    throw std::runtime_error(place(tensor.name, tensor.file) + ": columns " + std::to_string(slice.first_column) + " + " +
                             std::to_string(slice.num_columns) + " are not whole pieces of " + std::to_string(cut));
  }
}

void WeightSource::read_rows(const StoredTensor& tensor, std::size_t first_row, std::size_t num_rows, std::size_t first_column,
                             std::size_t num_columns, std::span<std::byte> to) const {
  check_slice(tensor, {first_row, num_rows, first_column, num_columns});
  const std::size_t columns = tensor.columns();
  const device::DTypeInfo& type = device::info(tensor.dtype);
  const std::size_t stride = device::row_bytes(tensor.dtype, columns);
  const std::size_t slice = device::covering_bytes(tensor.dtype, first_column, num_columns);
  if (to.size() != num_rows * slice) {
    throw std::invalid_argument(place(tensor.name, tensor.file) + ": the slice has " + std::to_string(num_rows * slice) +
                                " bytes, the room for it " + std::to_string(to.size()));
  }
  if (tensor.packed) return tensor.packed->open(*this, {first_row, num_rows, first_column, num_columns})->read(0, num_rows, to);
  if (num_columns == columns) return read(tensor, std::uint64_t{first_row} * stride, to);
  const std::uint64_t start = std::uint64_t{first_column / type.block_size} * type.block_bytes;
  for (std::size_t row = 0; row < num_rows; ++row) {
    read(tensor, std::uint64_t{first_row + row} * stride + start, to.subspan(row * slice, slice));
  }
}

}  // namespace lockstep::engine
