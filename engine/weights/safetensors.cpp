#include "engine/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/weights/checked.h"
#include "engine/weights/json_input.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are read as they stand in memory");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's reference implementation
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxAxes = 8;
constexpr std::uint64_t kLengthBytes = 8;  // the header's length, in front of it

struct StoredType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kTypes{StoredType{"F32", 4},    StoredType{"F16", 2}, StoredType{"BF16", 2},    StoredType{"F64", 8},
                            StoredType{"I64", 8},    StoredType{"I32", 4}, StoredType{"I16", 2},     StoredType{"I8", 1},
                            StoredType{"U64", 8},    StoredType{"U32", 4}, StoredType{"U16", 2},     StoredType{"U8", 1},
                            StoredType{"BOOL", 1},   StoredType{"C64", 8}, StoredType{"F8_E4M3", 1}, StoredType{"F8_E5M2", 1},
                            StoredType{"F8_E8M0", 1}};

/// What one file holds, before files are put together.
struct FileContents {
  std::vector<StoredTensor> tensors;
  std::vector<UnsupportedTensor> unsupported;
};

/// Reads one entry of a header.
class Entry {
 public:
  Entry(const std::string& source, const std::string& name, const json& value) : source_(source), name_(name), value_(value) {
    if (!value.is_object()) fail("is described by a JSON " + std::string(value.type_name()) + ", where an object is needed");
  }

  std::string type() const {
    const json& type = member("dtype");
    if (!type.is_string()) fail("has a 'dtype' that is no string");
    return type.get<std::string>();
  }

  std::vector<std::size_t> shape() const {
    const json& axes = member("shape");
    if (!axes.is_array() || axes.size() > kMaxAxes) fail("has a 'shape' that is no list of up to " + std::to_string(kMaxAxes) + " lengths");
    std::vector<std::size_t> shape;
    for (const json& axis : axes) shape.push_back(length(axis, "shape"));
    return shape;
  }

  /// [begin, end) within the `data_bytes` bytes behind the header.
  std::pair<std::uint64_t, std::uint64_t> data_offsets(std::uint64_t data_bytes) const {
    const json& offsets = member("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail("has 'data_offsets' that are no list of two");
    const std::uint64_t begin = length(offsets[0], "data_offsets");
    const std::uint64_t end = length(offsets[1], "data_offsets");
    const std::string place = "has data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (begin > end) fail(place + ", which end before they begin");
    if (end > data_bytes) {
      fail(place + ", but only " + std::to_string(data_bytes) + " bytes of data are in the file; it was cut off or is damaged");
    }
    return {begin, end};
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw std::runtime_error(source_ + ": tensor " + quote(name_) + " " + message);
  }

 private:
  const json& member(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail("has no '" + std::string(key) + "'");
    return *found;
  }

  std::uint64_t length(const json& value, const std::string& key) const {
    if (!value.is_number_unsigned())
      fail("has '" + key + "' with a JSON " + value.type_name() + " that is no whole number from 0 to 2^64 - 1");
    return value.get<std::uint64_t>();
  }

  const std::string& source_;
  const std::string& name_;
  const json& value_;
};

void read_entry(const Entry& entry, const std::string& name, std::size_t file, std::uint64_t data_start, std::uint64_t data_bytes,
                FileContents& contents, std::vector<Extent>& extents) {
  const std::string type_name = entry.type();
  std::vector<std::size_t> shape = entry.shape();
  const auto [begin, end] = entry.data_offsets(data_bytes);
  extents.push_back({data_start + begin, end - begin, name});
  const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& candidate) { return candidate.name == type_name; });
  if (type != kTypes.end()) {
    const auto bytes = tensor_bytes(shape, 1, type->bytes);
    if (bytes != end - begin) {
      entry.fail("of type " + type_name + " and shape " + shape_text(shape) + " needs " +
                 (bytes ? std::to_string(*bytes) : "more than 2^63") + " bytes, but its data_offsets give it " +
                 std::to_string(end - begin));
    }
  }
  const bool supported = type_name == "F32" || type_name == "F16" || type_name == "BF16";
  if (supported) {
    contents.tensors.push_back({name, *device::dtype_from_name(type_name), std::move(shape), file, data_start + begin, end - begin});
  } else {
    contents.unsupported.push_back({name, quote(type_name), file, std::move(shape), data_start + begin, end - begin});
  }
}

FileContents read_header(const InputFile& file, std::size_t file_index) {
  const std::string source = file.path().string();
  const auto fail = [&](const std::string& message) { throw std::runtime_error(source + ": not a safetensors file: " + message); };
  if (file.size() < kLengthBytes) fail("it has only " + std::to_string(file.size()) + " bytes");
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)), "length of the header");
  if (length > kMaxHeaderBytes)
    fail("its header is said to have " + std::to_string(length) + " bytes, more than " + std::to_string(kMaxHeaderBytes));
  if (length > file.size() - kLengthBytes) {
    fail("its header is said to have " + std::to_string(length) + " bytes, but the file ends at byte " + std::to_string(file.size()));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)), "header");

  const json header = parse_json_object(text, source + ": header", {.max_depth = 8, .refuse_duplicate_keys = true});
  const std::uint64_t data_start = kLengthBytes + length;
  FileContents contents;
  std::vector<Extent> extents;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    read_entry(Entry(source, name, value), name, file_index, data_start, file.size() - data_start, contents, extents);
  }
  refuse_overlaps(source, std::move(extents));
  const auto by_offset = [](const StoredTensor& a, const StoredTensor& b) { return a.offset < b.offset; };
  std::stable_sort(contents.tensors.begin(), contents.tensors.end(), by_offset);
  return contents;
}

std::map<std::string, std::string> weight_map(std::string_view index_json, const std::string& source) {
  const json index = parse_json_object(index_json, source, {.refuse_duplicate_keys = true});
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) throw std::runtime_error(source + ": there is no object 'weight_map'");
  std::map<std::string, std::string> map;
  for (const auto& [tensor, value] : found->items()) {
    if (!value.is_string()) throw std::runtime_error(source + ": weight_map: the file of tensor " + quote(tensor) + " is no string");
    const std::string& file = value.get_ref<const std::string&>();
    const bool plain =
        !file.empty() && file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && file != "." && file != "..";
    if (!plain)
      throw std::runtime_error(source + ": weight_map: tensor " + quote(tensor) + " is in " + quote(file) +
                               ", which is no file name of this folder");
    map.emplace(tensor, file);
  }
  if (map.empty()) throw std::runtime_error(source + ": weight_map is empty");
  return map;
}

std::unique_ptr<WeightSource> read_indexed(const std::filesystem::path& folder, const std::filesystem::path& index_path) {
  const std::string source = index_path.string();
  const std::string index = read_text_file(index_path, kMaxIndexBytes);
  const std::map<std::string, std::string> map = weight_map(index, source);
  std::vector<InputFile> files;
  std::vector<StoredTensor> tensors;
  std::vector<UnsupportedTensor> unsupported;
  std::set<std::string, std::less<>> present;
  for (const std::string& name : files_of_index(index, source)) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored))
      throw std::runtime_error(source + ": the file " + quote(name) + " that it names is missing");
    files.emplace_back(folder / name);
    FileContents contents = read_header(files.back(), files.size() - 1);
    const auto counts = [&](const std::string& tensor) {
      const auto found = map.find(tensor);
      return found != map.end() && found->second == name;
    };
    const auto take = [&](auto& from, auto& to) {
      for (auto& tensor : from) {
        if (!counts(tensor.name)) continue;
        present.insert(tensor.name);
        to.push_back(std::move(tensor));
      }
    };
    take(contents.tensors, tensors);
    take(contents.unsupported, unsupported);
  }
  for (const auto& [tensor, file] : map) {
    if (!present.contains(tensor))
      throw std::runtime_error((folder / file).string() + ": tensor " + quote(tensor) + " is missing, which " + source + " puts there");
  }
  return std::make_unique<WeightSource>(std::move(files), std::move(tensors), std::move(unsupported));
}

}  // namespace

std::unique_ptr<WeightSource> read_safetensors(InputFile file) {
  FileContents contents = read_header(file, 0);
  std::vector<InputFile> files;
  files.push_back(std::move(file));
  return std::make_unique<WeightSource>(std::move(files), std::move(contents.tensors), std::move(contents.unsupported));
}

std::unique_ptr<WeightSource> read_safetensors(const std::filesystem::path& path) { return read_safetensors(InputFile(path)); }

std::unique_ptr<WeightSource> read_safetensors_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path single = folder / "model.safetensors";
  if (std::filesystem::exists(single, ignored)) return read_safetensors(single);
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(index, ignored)) return read_indexed(folder, index);
  throw std::runtime_error(folder.string() + ": there is neither model.safetensors nor model.safetensors.index.json in this folder");
}

std::vector<std::string> files_of_index(std::string_view index_json, const std::string& source) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map(index_json, source)) files.insert(file);
  return {files.begin(), files.end()};
}

void write_safetensors(const std::filesystem::path& path, std::span<const FloatTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (const FloatTensor& tensor : tensors) {
    std::uint64_t count = 1;
    for (const std::size_t axis : tensor.shape) count *= axis;
    if (count != tensor.values.size()) {
      throw std::invalid_argument("tensor " + quote(tensor.name) + " of shape " + shape_text(tensor.shape) + " has " +
                                  std::to_string(tensor.values.size()) + " values");
    }
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.values.size_bytes()}}};
    offset += tensor.values.size_bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the values are aligned
  const std::uint64_t length = text.size();

  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const FloatTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.values.data()), static_cast<std::streamsize>(tensor.values.size_bytes()));
  }
  file.close();
  if (!file) throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace lockstep::engine
