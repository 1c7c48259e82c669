#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::text {

/// Parses a JSON document from outside. @throws std::runtime_error naming `source`: too large, nested too deeply, not JSON.
nlohmann::json parse_hostile_json(const std::string& source, std::string_view text);

/// A value in a document, and where it stands: a reader whose errors name the file and the JSON pointer. The document outlives it.
class JsonPlace {
 public:
  JsonPlace(const nlohmann::json& document, const std::string& source) : value_(&document), source_(&source) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& pointer() const { return pointer_; }
  bool is_null() const { return value_->is_null(); }

  /// A member of this object. @throws where it is absent, or this is no object.
  JsonPlace at(const std::string& key) const;
  /// Nothing where the member is absent or null.
  std::optional<JsonPlace> find(const std::string& key) const;
  /// An element of this array.
  JsonPlace element(std::size_t index) const;
  /// @throws where this is no array.
  std::size_t size() const;

  const std::string& string() const;
  bool boolean() const;
  std::int64_t integer() const;
  bool boolean_or(const std::string& key, bool otherwise) const;
  void require_object() const;

  /// @throws std::runtime_error "FILE: POINTER: message".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  JsonPlace(const nlohmann::json& value, const std::string& source, std::string pointer)
      : value_(&value), source_(&source), pointer_(std::move(pointer)) {}

  const nlohmann::json* value_;
  const std::string* source_;
  std::string pointer_;
};

/// A key as a JSON pointer writes it.
std::string pointer_key(std::string_view key);
/// Text from outside as a message may show it: short, printable, valid UTF-8, in quotes.
std::string in_quotes(std::string_view text);

}  // namespace lockstep::text
