#include "engine/model/json_fields.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace lockstep::engine {
namespace {

constexpr std::size_t kMaxTokenIds = 1024;

/// A value for a message, cut where it is long.
std::string shown(const nlohmann::json& value) {
  if (value.is_array() || value.is_object()) return "a JSON " + std::string(value.type_name());
  constexpr std::size_t kMaxShown = 80;
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

std::string number_text(double value) { return nlohmann::json(value).dump(); }

}  // namespace

void JsonFields::fail(const std::string& key, const std::string& message) const {
  throw std::runtime_error(source_ + ": " + prefix_ + key + ": " + message);
}

const nlohmann::json* JsonFields::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::uint64_t JsonFields::integer(const char* key, std::uint64_t min, std::uint64_t max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) fail(key, "is missing");
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < min || value->get<std::uint64_t>() > max) {
    fail(key, "is " + shown(*value) + "; a whole number from " + std::to_string(min) + " to " + std::to_string(max) + " is needed");
  }
  return value->get<std::uint64_t>();
}

std::uint64_t JsonFields::integer_or(const char* key, std::uint64_t min, std::uint64_t max, std::uint64_t absent) const {
  return find(key) == nullptr ? absent : integer(key, min, max);
}

std::optional<double> JsonFields::number(const char* key, double min, double max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    fail(key, "is " + shown(*value) + "; a number from " + number_text(min) + " to " + number_text(max) + " is needed");
  }
  return value->get<double>();
}

bool JsonFields::flag_or(const char* key, bool absent) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) fail(key, "is " + shown(*value) + "; true or false is needed");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::text(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "is " + shown(*value) + "; a string is needed");
  return value->get<std::string>();
}

std::optional<JsonFields> JsonFields::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(key, "is " + shown(*value) + "; an object is needed");
  return JsonFields(*value, source_, prefix_ + key + ".");
}

std::int32_t JsonFields::token_id_of(const nlohmann::json& value, const char* key) const {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{kMax} : value.is_number_integer();
  if (!fits) fail(key, "is " + shown(value) + "; a token id is needed");
  return static_cast<std::int32_t>(std::max<std::int64_t>(value.get<std::int64_t>(), -1));
}

std::vector<std::int32_t> JsonFields::token_ids(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::int32_t> ids;
  if (value->is_array()) {
    if (value->size() > kMaxTokenIds) fail(key, "has " + std::to_string(value->size()) + " ids, more than " + std::to_string(kMaxTokenIds));
    for (const nlohmann::json& id : *value) ids.push_back(token_id_of(id, key));
  } else {
    ids.push_back(token_id_of(*value, key));
  }
  std::erase(ids, -1);
  return ids;
}

std::int32_t JsonFields::token_id(const char* key) const {
  const nlohmann::json* value = find(key);
  return value == nullptr ? -1 : token_id_of(*value, key);
}

}  // namespace lockstep::engine
