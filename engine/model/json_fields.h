#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::engine {

/// Typed, range-checked access to the members of a JSON object. A member that is null is absent. Errors are std::runtime_error: "FILE: KEY:
/// ...".
class JsonFields {
 public:
  /// @pre `object` is an object and outlives this. `prefix` stands before keys in messages: "rope_scaling."
  JsonFields(const nlohmann::json& object, std::string source, std::string prefix = "")
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  const nlohmann::json* find(const char* key) const;  // nullptr: absent
  std::uint64_t integer(const char* key, std::uint64_t min, std::uint64_t max) const;
  std::uint64_t integer_or(const char* key, std::uint64_t min, std::uint64_t max, std::uint64_t absent) const;
  /// In the closed range; never NaN.
  std::optional<double> number(const char* key, double min, double max) const;
  bool flag_or(const char* key, bool absent) const;
  std::optional<std::string> text(const char* key) const;
  std::optional<JsonFields> object(const char* key) const;
  /// A token id or a list of them; empty if absent. A negative id is dropped: some files write -1 for "none".
  std::vector<std::int32_t> token_ids(const char* key) const;
  /// One token id; -1 if absent or negative.
  std::int32_t token_id(const char* key) const;

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  std::int32_t token_id_of(const nlohmann::json& value, const char* key) const;

  const nlohmann::json& object_;
  std::string source_;
  std::string prefix_;
};

}  // namespace lockstep::engine
