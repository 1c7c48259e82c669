#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/weights/source.h"

namespace lockstep::engine {

/// What a metadata value is, numbered as in the file.
enum class GgufKind : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string_view name_of(GgufKind kind);  // "uint32"

/// A list of values of one kind. Numbers stay as they are stored; GgufMetadata's getters expand them.
struct GgufArray {
  GgufKind element = GgufKind::kUint8;
  std::uint64_t count = 0;
  std::vector<std::byte> numbers;    // little-endian, where the elements are no strings
  std::vector<std::string> strings;  // where they are
  bool operator==(const GgufArray&) const = default;
};

struct GgufValue {
  GgufKind kind = GgufKind::kUint8;
  std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray> value;
  bool operator==(const GgufValue&) const = default;
};

/// The metadata of a GGUF file. A getter gives "absent" only where the key is; a value of another kind is an error that names file, key and
/// the kind found.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  GgufMetadata(std::string source, std::map<std::string, GgufValue, std::less<>> values)
      : source_(std::move(source)), values_(std::move(values)) {}

  bool contains(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const std::string& source() const { return source_; }  // the file, for messages

  std::optional<std::uint64_t> unsigned_integer(std::string_view key) const;  // any integer kind, not negative
  std::optional<std::int64_t> integer(std::string_view key) const;            // any integer kind that fits
  std::optional<double> number(std::string_view key) const;                   // integers, too
  std::optional<bool> flag(std::string_view key) const;
  const std::string* text(std::string_view key) const;                            // nullptr: absent
  const std::vector<std::string>* texts(std::string_view key) const;              // nullptr: absent
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;  // any integer kind, and bools
  std::optional<std::vector<double>> numbers(std::string_view key) const;         // float kinds

  /// @throws std::runtime_error "FILE: metadata key 'KEY' MESSAGE".
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

 private:
  const GgufValue* find(std::string_view key) const;
  [[noreturn]] void fail_kind(std::string_view key, const GgufValue& found, std::string_view wanted) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

/// The header of a GGUF file, and access to its tensors. Of a model that is split over several files: the header of the first one (the
/// others have little metadata of their own), and the tensors of all.
struct GgufFile {
  std::uint32_t version = 0;
  std::uint64_t alignment = 0;
  std::uint64_t data_offset = 0;  // where the tensors' section begins; offsets in `tensors` are those in the file
  GgufMetadata metadata;
  std::unique_ptr<WeightSource> tensors;  // shapes outermost first: the file's ne, reversed
  std::string header_hash;                // of all bytes before the tensors
};

/// Reads the headers of GGUF files, version 2 or 3, little-endian: of one, or of all parts of a split model, in their order. Every count,
/// length and offset is checked against the file before it is used: memory stays within a small multiple of a header, which is 128 MiB at
/// most. Parts must agree about how many they are, which one each is (split.no, split.count), how many tensors there are
/// (split.tensors.count), and on every other key that two of them have.
/// @throws std::runtime_error that names the file, the place, and what is wrong or not supported.
GgufFile read_gguf(std::vector<InputFile> parts);
GgufFile read_gguf(InputFile file);
/// The file, and where it is a part of a split model, all the others beside it.
GgufFile read_gguf(const std::filesystem::path& path);

/// The files of the model that `path` is or is a part of, in order: of NAME-00002-of-00003.gguf those three, of any other name itself.
/// @throws std::runtime_error that names the part that is not there, or a name that cannot be right.
std::vector<std::filesystem::path> gguf_parts(const std::filesystem::path& path);

}  // namespace lockstep::engine
