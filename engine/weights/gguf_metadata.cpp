#include <cstring>
#include <limits>
#include <stdexcept>

#include "engine/weights/gguf.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

template <class Stored, class Result>
void expand(const GgufArray& array, std::vector<Result>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, array.numbers.data() + i * sizeof stored, sizeof stored);
    values[i] = Result{stored};
  }
}

}  // namespace

std::string_view name_of(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8: return "uint8";
    case GgufKind::kInt8: return "int8";
    case GgufKind::kUint16: return "uint16";
    case GgufKind::kInt16: return "int16";
    case GgufKind::kUint32: return "uint32";
    case GgufKind::kInt32: return "int32";
    case GgufKind::kFloat32: return "float32";
    case GgufKind::kBool: return "bool";
    case GgufKind::kString: return "string";
    case GgufKind::kArray: return "array";
    case GgufKind::kUint64: return "uint64";
    case GgufKind::kInt64: return "int64";
    case GgufKind::kFloat64: return "float64";
  }
  return "unknown";
}

void GgufMetadata::fail(std::string_view key, const std::string& message) const {
  throw std::runtime_error(source_ + ": metadata key " + quote(key) + " " + message);
}

void GgufMetadata::fail_kind(std::string_view key, const GgufValue& found, std::string_view wanted) const {
  std::string kind(name_of(found.kind));
  if (const auto* array = std::get_if<GgufArray>(&found.value)) kind += " of " + std::string(name_of(array->element));
  fail(key, "is a value of kind " + kind + ", where " + std::string(wanted) + " is needed");
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufMetadata::is_array(std::string_view key) const {
  const GgufValue* found = find(key);
  return found != nullptr && found->kind == GgufKind::kArray;
}

std::optional<std::uint64_t> GgufMetadata::unsigned_integer(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = std::get_if<std::uint64_t>(&found->value)) return *value;
  const auto* value = std::get_if<std::int64_t>(&found->value);
  if (value == nullptr) fail_kind(key, *found, "an integer");
  if (*value < 0) fail(key, "is " + std::to_string(*value) + ", which must not be negative");
  return static_cast<std::uint64_t>(*value);
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = std::get_if<std::int64_t>(&found->value)) return *value;
  const auto* value = std::get_if<std::uint64_t>(&found->value);
  if (value == nullptr) fail_kind(key, *found, "an integer");
  if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail(key, "is " + std::to_string(*value) + ", which is too large");
  return static_cast<std::int64_t>(*value);
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = std::get_if<double>(&found->value)) return *value;
  if (const auto* value = std::get_if<std::uint64_t>(&found->value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::int64_t>(&found->value)) return static_cast<double>(*value);
  fail_kind(key, *found, "a number");
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto* value = std::get_if<bool>(&found->value);
  if (value == nullptr) fail_kind(key, *found, "a bool");
  return *value;
}

const std::string* GgufMetadata::text(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return nullptr;
  const auto* value = std::get_if<std::string>(&found->value);
  if (value == nullptr) fail_kind(key, *found, "a string");
  return value;
}

const std::vector<std::string>* GgufMetadata::texts(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return nullptr;
  const auto* array = std::get_if<GgufArray>(&found->value);
  if (array == nullptr || array->element != GgufKind::kString) fail_kind(key, *found, "an array of strings");
  return &array->strings;
}

std::optional<std::vector<std::int64_t>> GgufMetadata::integers(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(&found->value);
  if (array == nullptr) fail_kind(key, *found, "an array of integers");
  std::vector<std::int64_t> values(array->count);
  switch (array->element) {
    case GgufKind::kUint8:
    case GgufKind::kBool: expand<std::uint8_t>(*array, values); break;
    case GgufKind::kInt8: expand<std::int8_t>(*array, values); break;
    case GgufKind::kUint16: expand<std::uint16_t>(*array, values); break;
    case GgufKind::kInt16: expand<std::int16_t>(*array, values); break;
    case GgufKind::kUint32: expand<std::uint32_t>(*array, values); break;
    case GgufKind::kInt32: expand<std::int32_t>(*array, values); break;
    case GgufKind::kInt64: expand<std::int64_t>(*array, values); break;
    default: fail_kind(key, *found, "an array of integers of up to 63 bits");
  }
  return values;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(&found->value);
  if (array == nullptr) fail_kind(key, *found, "an array of floats");
  std::vector<double> values(array->count);
  switch (array->element) {
    case GgufKind::kFloat32: expand<float>(*array, values); break;
    case GgufKind::kFloat64: expand<double>(*array, values); break;
    default: fail_kind(key, *found, "an array of floats");
  }
  return values;
}

}  // namespace lockstep::engine
