#include "engine/text/json_place.h"

#include <stdexcept>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kLargestDocument = std::size_t{128} << 20;  // the largest that are in use have about 35 MB
constexpr int kDeepest = 64;

int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (in_string) {
      if (character == '\\') ++i;
      if (character == '"') in_string = false;
      continue;
    }
    if (character == '"') in_string = true;
    if (character == '[' || character == '{') deepest = std::max(deepest, ++depth);
    if (character == ']' || character == '}') --depth;
  }
  return deepest;
}

}  // namespace

nlohmann::json parse_hostile_json(const std::string& source, std::string_view text) {
  if (text.size() > kLargestDocument)
    throw std::runtime_error(source + ": has " + std::to_string(text.size()) + " bytes; the limit is 128 MiB");
  // The library walks values recursively in places.
  if (depth_of(text) > kDeepest) throw std::runtime_error(source + ": is nested deeper than " + std::to_string(kDeepest) + " levels");
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(source + ": is not valid JSON: " + to_valid_utf8(error.what()));
  }
}

JsonPlace JsonPlace::at(const std::string& key) const {
  require_object();
  const auto member = value_->find(key);
  if (member == value_->end()) fail("has no member \"" + key + "\"");
  return {*member, *source_, pointer_ + "/" + pointer_key(key)};
}

std::optional<JsonPlace> JsonPlace::find(const std::string& key) const {
  require_object();
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonPlace(*member, *source_, pointer_ + "/" + pointer_key(key));
}

JsonPlace JsonPlace::element(std::size_t index) const { return {value_->at(index), *source_, pointer_ + "/" + std::to_string(index)}; }

std::size_t JsonPlace::size() const {
  if (!value_->is_array()) fail(std::string("must be an array, not ") + value_->type_name());
  return value_->size();
}

const std::string& JsonPlace::string() const {
  if (!value_->is_string()) fail(std::string("must be a string, not ") + value_->type_name());
  return value_->get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) fail(std::string("must be true or false, not ") + value_->type_name());
  return value_->get<bool>();
}

std::int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) fail(std::string("must be an integer, not ") + value_->type_name());
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) fail("is too large");
  return value_->get<std::int64_t>();
}

bool JsonPlace::boolean_or(const std::string& key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

void JsonPlace::require_object() const {
  if (!value_->is_object()) fail(std::string("must be an object, not ") + value_->type_name());
}

void JsonPlace::fail(const std::string& message) const {
  throw std::runtime_error(*source_ + ": " + (pointer_.empty() ? "/" : pointer_) + ": " + message);
}

std::string pointer_key(std::string_view key) {
  std::string result;
  for (const char character : key) {
    if (character == '~') {
      result += "~0";
    } else if (character == '/') {
      result += "~1";
    } else {
      result += character;
    }
  }
  return result;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string result = "\"";
  for (const char character : text.substr(0, kLongest)) result += static_cast<unsigned char>(character) < 0x20 ? '?' : character;
  return to_valid_utf8(result) + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace lockstep::text
