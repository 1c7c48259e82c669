#include "engine/weights/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "engine/weights/checked.h"
#include "engine/weights/fnv128.h"
#include "engine/weights/gguf_types.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they stand in memory");

constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{128} << 20;  // the largest vocabularies of today take some 20 MiB
constexpr std::uint64_t kMaxKeyBytes = 65535;                        // as the format states
constexpr std::uint64_t kMaxTensorNameBytes = 1024;                  // the format states 64
constexpr std::uint32_t kMaxAxes = 4;
constexpr std::uint64_t kMaxMetadataValues = 65536;
constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 20;

/// Reads the header front to back through a small buffer, so that a rank reads little behind it, and hashes what it reads.
class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file) : file_(file), end_(std::min(file.size(), kMaxHeaderBytes)) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return end_ - position_; }
  std::string hash() const { return hash_.hex(); }

  template <class T>
  T number(std::string_view what) {
    T value;
    bytes(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  std::string text(std::uint64_t max_bytes, std::string_view what) {
    const std::uint64_t at = position_;
    const auto length = number<std::uint64_t>(what);
    if (length > max_bytes || length > remaining()) {
      fail(at, std::string(what) + " is said to have " + std::to_string(length) + " bytes; " +
                   std::to_string(std::min(max_bytes, remaining())) + " at most are possible");
    }
    std::string value(static_cast<std::size_t>(length), '\0');
    bytes(std::as_writable_bytes(std::span(value)), what);
    return value;
  }

  /// A number of things that take at least `min_bytes` each.
  std::uint64_t count(std::uint64_t min_bytes, std::string_view what, std::uint64_t max = kMaxHeaderBytes) {
    const std::uint64_t at = position_;
    const auto value = number<std::uint64_t>(what);
    if (value > max)
      fail(at, std::string(what) + " is " + std::to_string(value) + ", more than the " + std::to_string(max) + " that are read");
    if (value > remaining() / min_bytes) {
      fail(at, std::string(what) + " is " + std::to_string(value) + ", more than the " + std::to_string(remaining()) +
                   " bytes behind it can hold");
    }
    return value;
  }

  void bytes(std::span<std::byte> to, std::string_view what) {
    if (to.size() > remaining()) {
      if (end_ < file_.size()) fail(position_, "the header is larger than the " + std::to_string(kMaxHeaderBytes) + " bytes that are read");
      fail(position_, "the file ends in " + std::string(what));
    }
    position_ += to.size();
    const auto whole = to;
    while (!to.empty()) {
      if (buffered_.empty()) fill(to.size());
      const std::size_t size = std::min(to.size(), buffered_.size());
      std::copy_n(buffered_.begin(), size, to.begin());
      buffered_ = buffered_.subspan(size);
      to = to.subspan(size);
    }
    hash_.add(std::span<const std::byte>(whole));
  }

  [[noreturn]] void fail(std::uint64_t at, const std::string& message) const {
    throw std::runtime_error(file_.path().string() + ": byte " + std::to_string(at) + ": " + message);
  }

 private:
  void fill(std::size_t at_least) {
    const std::uint64_t from = position_ - at_least;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), end_ - from));
    file_.read(from, std::span(buffer_).first(size), "GGUF header");
    buffered_ = std::span(buffer_).first(size);
  }

  const InputFile& file_;
  std::uint64_t end_;
  std::uint64_t position_ = 0;
  std::array<std::byte, 8192> buffer_;
  std::span<std::byte> buffered_;  // the part of buffer_ that was not taken yet
  Fnv128 hash_;
};

/// Bytes of a number of this kind; 0 for strings and arrays.
std::uint64_t bytes_of(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8:
    case GgufKind::kInt8:
    case GgufKind::kBool: return 1;
    case GgufKind::kUint16:
    case GgufKind::kInt16: return 2;
    case GgufKind::kUint32:
    case GgufKind::kInt32:
    case GgufKind::kFloat32: return 4;
    case GgufKind::kUint64:
    case GgufKind::kInt64:
    case GgufKind::kFloat64: return 8;
    case GgufKind::kString:
    case GgufKind::kArray: return 0;
  }
  return 0;
}

GgufKind read_kind(HeaderReader& reader, const std::string& key) {
  const std::uint64_t at = reader.position();
  const auto number = reader.number<std::uint32_t>("the kind of a metadata value");
  if (number > static_cast<std::uint32_t>(GgufKind::kFloat64)) {
    reader.fail(at, "metadata key " + quote(key) + " has a value of unknown kind " + std::to_string(number));
  }
  return static_cast<GgufKind>(number);
}

bool read_bool(HeaderReader& reader, const std::string& key) {
  const std::uint64_t at = reader.position();
  const auto value = reader.number<std::uint8_t>("a metadata value");
  if (value > 1) reader.fail(at, "metadata key " + quote(key) + " is a bool of value " + std::to_string(value));
  return value == 1;
}

GgufArray read_array(HeaderReader& reader, const std::string& key) {
  constexpr std::string_view kWhat = "the length of a metadata array";
  const std::uint64_t at = reader.position();
  GgufArray array;
  array.element = read_kind(reader, key);
  if (array.element == GgufKind::kArray) reader.fail(at, "metadata key " + quote(key) + " is an array of arrays, which is not supported");
  if (array.element == GgufKind::kString) {
    array.count = reader.count(8, kWhat);
    array.strings.reserve(static_cast<std::size_t>(array.count));
    for (std::uint64_t i = 0; i < array.count; ++i) array.strings.push_back(reader.text(kMaxHeaderBytes, "a string of a metadata array"));
    return array;
  }
  const std::uint64_t element_bytes = bytes_of(array.element);
  array.count = reader.count(element_bytes, kWhat);
  array.numbers.resize(static_cast<std::size_t>(array.count * element_bytes));
  reader.bytes(array.numbers, "a metadata array");
  return array;
}

GgufValue read_value(HeaderReader& reader, const std::string& key) {
  constexpr std::string_view kWhat = "a metadata value";
  const GgufKind kind = read_kind(reader, key);
  switch (kind) {
    case GgufKind::kUint8: return {kind, std::uint64_t{reader.number<std::uint8_t>(kWhat)}};
    case GgufKind::kUint16: return {kind, std::uint64_t{reader.number<std::uint16_t>(kWhat)}};
    case GgufKind::kUint32: return {kind, std::uint64_t{reader.number<std::uint32_t>(kWhat)}};
    case GgufKind::kUint64: return {kind, reader.number<std::uint64_t>(kWhat)};
    case GgufKind::kInt8: return {kind, std::int64_t{reader.number<std::int8_t>(kWhat)}};
    case GgufKind::kInt16: return {kind, std::int64_t{reader.number<std::int16_t>(kWhat)}};
    case GgufKind::kInt32: return {kind, std::int64_t{reader.number<std::int32_t>(kWhat)}};
    case GgufKind::kInt64: return {kind, reader.number<std::int64_t>(kWhat)};
    case GgufKind::kFloat32: return {kind, double{reader.number<float>(kWhat)}};
    case GgufKind::kFloat64: return {kind, reader.number<double>(kWhat)};
    case GgufKind::kBool: return {kind, read_bool(reader, key)};
    case GgufKind::kString: return {kind, reader.text(kMaxHeaderBytes, "a metadata string")};
    case GgufKind::kArray: return {kind, read_array(reader, key)};
  }
  reader.fail(reader.position(), "unreachable");
}

std::uint32_t read_version(HeaderReader& reader) {
  std::array<char, 4> magic{};
  reader.bytes(std::as_writable_bytes(std::span(magic)), "the magic number");
  const std::string_view text(magic.data(), magic.size());
  if (text == "FUGG") reader.fail(0, "this is a big-endian GGUF file, which is not supported");
  if (text != "GGUF") reader.fail(0, "not a GGUF file: it begins with " + quote(text));
  const auto version = reader.number<std::uint32_t>("the version");
  if (version != 0 && (version & 0xFFFFu) == 0) reader.fail(4, "this is a big-endian GGUF file, which is not supported");
  if (version != 2 && version != 3) reader.fail(4, "GGUF version " + std::to_string(version) + " is not supported; supported: 2, 3");
  return version;
}

std::map<std::string, GgufValue, std::less<>> read_metadata(HeaderReader& reader, std::uint64_t count) {
  std::map<std::string, GgufValue, std::less<>> values;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = reader.position();
    std::string key = reader.text(kMaxKeyBytes, "a metadata key");
    GgufValue value = read_value(reader, key);
    const auto [place, is_new] = values.emplace(std::move(key), std::move(value));
    if (!is_new) reader.fail(at, "the metadata key " + quote(place->first) + " occurs twice");
  }
  return values;
}

/// What the header says about a tensor.
struct TensorInfo {
  std::string name;
  std::vector<std::size_t> shape;  // outermost first
  GgufTensorType type;
  std::uint64_t offset = 0;  // within the tensors' section
};

TensorInfo read_tensor_info(HeaderReader& reader) {
  const std::uint64_t at = reader.position();
  TensorInfo info;
  info.name = reader.text(kMaxTensorNameBytes, "a tensor name");
  const auto num_axes = reader.number<std::uint32_t>("a tensor description");
  if (num_axes > kMaxAxes)
    reader.fail(at, "tensor " + quote(info.name) + " has " + std::to_string(num_axes) + " axes, more than " + std::to_string(kMaxAxes));
  for (std::uint32_t axis = 0; axis < num_axes; ++axis) {
    info.shape.push_back(reader.number<std::uint64_t>("a tensor description"));
    if (info.shape.back() == 0) reader.fail(at, "tensor " + quote(info.name) + " has an axis of length 0");
  }
  std::reverse(info.shape.begin(), info.shape.end());
  info.type = gguf_tensor_type(reader.number<std::uint32_t>("a tensor description"));
  info.offset = reader.number<std::uint64_t>("a tensor description");
  return info;
}

std::uint64_t read_alignment(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  const std::uint64_t alignment = metadata.unsigned_integer(kKey).value_or(32);
  if (alignment < 1 || alignment > (1u << 20) || !std::has_single_bit(alignment)) {
    metadata.fail(kKey, "is " + std::to_string(alignment) + ", which is no power of two up to 2^20");
  }
  return alignment;
}

/// Checks the place of a tensor against the file and returns its bytes; nullopt for a type whose size is not known.
std::optional<std::uint64_t> check_extent(const TensorInfo& info, const GgufFile& header, const InputFile& file) {
  const auto fail = [&](const std::string& message) {
    throw std::runtime_error(file.path().string() + ": tensor " + quote(info.name) + " of type " + info.type.name + " and shape " +
                             shape_text(info.shape) + " " + message);
  };
  const std::uint64_t data_bytes = file.size() < header.data_offset ? 0 : file.size() - header.data_offset;
  if (info.offset % header.alignment != 0) {
    fail("begins at offset " + std::to_string(info.offset) + ", which is no multiple of the alignment " + std::to_string(header.alignment));
  }
  if (info.offset > data_bytes)
    fail("begins at offset " + std::to_string(info.offset) + " of " + std::to_string(data_bytes) + " bytes of tensors");
  if (info.type.block_size == 0) return std::nullopt;
  const auto bytes = tensor_bytes(info.shape, info.type.block_size, info.type.block_bytes);
  if (!bytes)
    fail("has rows that are not whole blocks of " + std::to_string(info.type.block_size) + " elements, or is larger than any file");
  // Writers pad the last tensor, too; where that is missing, the end of the file got lost.
  const std::uint64_t padded = (*bytes + header.alignment - 1) / header.alignment * header.alignment;
  if (padded > data_bytes - info.offset) {
    fail("ends behind the file: it has " + std::to_string(*bytes) + " bytes from byte " + std::to_string(header.data_offset + info.offset) +
         " on, padded to " + std::to_string(padded) + ", and the file ends at byte " + std::to_string(file.size()) +
         "; it was cut off or is damaged");
  }
  return bytes;
}

/// One file, before the parts are put together.
struct Part {
  GgufFile header;  // without tensors
  std::vector<StoredTensor> tensors;
  std::vector<UnsupportedTensor> unsupported;
};

Part read_part(const InputFile& file, std::size_t file_index) {
  HeaderReader reader(file);
  Part part;
  GgufFile& header = part.header;
  header.version = read_version(reader);
  const std::uint64_t num_tensors = reader.count(24, "the number of tensors", kMaxTensors);
  const std::uint64_t num_values = reader.count(13, "the number of metadata values", kMaxMetadataValues);
  header.metadata = GgufMetadata(file.path().string(), read_metadata(reader, num_values));
  header.alignment = read_alignment(header.metadata);

  std::vector<TensorInfo> infos;
  for (std::uint64_t i = 0; i < num_tensors; ++i) infos.push_back(read_tensor_info(reader));
  header.data_offset = (reader.position() + header.alignment - 1) / header.alignment * header.alignment;
  header.header_hash = reader.hash();

  std::vector<Extent> extents;
  for (TensorInfo& info : infos) {
    const auto bytes = check_extent(info, header, file);
    const std::uint64_t offset = header.data_offset + info.offset;
    if (bytes) extents.push_back({offset, *bytes, info.name});
    if (info.type.dtype) {
      part.tensors.push_back({std::move(info.name), *info.type.dtype, std::move(info.shape), file_index, offset, *bytes});
    } else {
      part.unsupported.push_back({std::move(info.name), std::move(info.type.name), file_index});
    }
  }
  refuse_overlaps(file.path().string(), std::move(extents));
  return part;
}

/// That each file is the part as which it stands.
void check_places(const std::vector<Part>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const GgufMetadata& metadata = parts[i].header.metadata;
    const std::uint64_t count = std::max<std::uint64_t>(metadata.unsigned_integer("split.count").value_or(1), 1);
    if (count > 1 && parts.size() == 1) {
      metadata.fail("split.count", "is " + std::to_string(count) +
                                       ": this is a part of a split model, but its name does not end in -NNNNN-of-NNNNN.gguf, by which the "
                                       "other parts are found");
    }
    const std::string place = "part " + std::to_string(i + 1) + " of " + std::to_string(parts.size());
    if (count != parts.size()) metadata.fail("split.count", "is " + std::to_string(count) + ", but the file stands as " + place);
    const std::uint64_t number = metadata.unsigned_integer("split.no").value_or(0);
    if (number != i) {
      metadata.fail("split.no", "is " + std::to_string(number) + ", which makes it part " + std::to_string(number + 1) +
                                    ", but the file stands as " + place);
    }
  }
}

/// That the parts are those of one model, and none is of another one.
void check_agreement(const std::vector<Part>& parts) {
  std::size_t total = 0;
  for (const Part& part : parts) total += part.tensors.size() + part.unsupported.size();
  const GgufMetadata& first = parts.front().header.metadata;
  for (const Part& part : parts) {
    const GgufMetadata& metadata = part.header.metadata;
    const auto stated = metadata.unsigned_integer("split.tensors.count");
    if (parts.size() > 1 && stated && *stated != total) {
      metadata.fail("split.tensors.count", "is " + std::to_string(*stated) + ", but the " + std::to_string(parts.size()) + " parts have " +
                                               std::to_string(total) + " tensors");
    }
    if (&part == &parts.front()) continue;  // a number that is none (NaN) would differ from itself
    for (const auto& [key, value] : metadata.values()) {
      if (key.starts_with("split.") || key == "general.alignment") continue;
      const auto same = first.values().find(key);
      if (same != first.values().end() && same->second != value) metadata.fail(key, "differs from that of " + first.source());
    }
  }
}

}  // namespace

GgufFile read_gguf(std::vector<InputFile> files) {
  if (files.empty()) throw std::invalid_argument("a GGUF model has at least one file");
  std::vector<Part> parts;
  for (std::size_t i = 0; i < files.size(); ++i) parts.push_back(read_part(files[i], i));
  check_places(parts);
  check_agreement(parts);
  GgufFile result = std::move(parts[0].header);
  std::vector<StoredTensor> tensors;
  std::vector<UnsupportedTensor> unsupported;
  Fnv128 hash;
  hash.add(std::string_view(result.header_hash));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::move(parts[i].tensors.begin(), parts[i].tensors.end(), std::back_inserter(tensors));
    std::move(parts[i].unsupported.begin(), parts[i].unsupported.end(), std::back_inserter(unsupported));
    if (i > 0) hash.add(std::string_view(parts[i].header.header_hash));
  }
  if (parts.size() > 1) result.header_hash = hash.hex();
  result.tensors = std::make_unique<WeightSource>(std::move(files), std::move(tensors), std::move(unsupported));
  return result;
}

GgufFile read_gguf(InputFile file) {
  std::vector<InputFile> files;
  files.push_back(std::move(file));
  return read_gguf(std::move(files));
}

GgufFile read_gguf(const std::filesystem::path& path) {
  std::vector<InputFile> files;
  for (const std::filesystem::path& part : gguf_parts(path)) files.emplace_back(part);
  return read_gguf(std::move(files));
}

}  // namespace lockstep::engine
