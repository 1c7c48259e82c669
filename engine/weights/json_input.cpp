#include "engine/weights/json_input.h"

#include <set>
#include <stdexcept>
#include <vector>

#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

/// Bounds depth and number of values of a text that may not even be JSON: in JSON, each value but the first of a list or object follows a
/// comma.
void check_limits(std::string_view text, const std::string& source, const JsonLimits& limits) {
  std::size_t depth = 0;
  std::size_t values = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > limits.max_depth) {
      throw std::runtime_error(source + ": nested deeper than " + std::to_string(limits.max_depth) + " levels at byte " +
                               std::to_string(i));
    }
    if (values > limits.max_values) throw std::runtime_error(source + ": more than " + std::to_string(limits.max_values) + " JSON values");
  }
}

/// Throws at the second use of a key in one object.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(const std::string& source) : source_(source) {}
  bool operator()(json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key && !open_.back().insert(value.get<std::string>()).second) {
      throw std::runtime_error(source_ + ": the key " + quote(value.get<std::string>()) + " occurs twice");
    }
    return true;
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

json parse_json_object(std::string_view text, const std::string& source, const JsonLimits& limits) {
  check_limits(text, source, limits);
  json value;
  try {
    if (limits.refuse_duplicate_keys) {
      DuplicateKeys keys(source);
      value = json::parse(text, [&](int, json::parse_event_t event, json& parsed) { return keys(event, parsed); });
    } else {
      value = json::parse(text);
    }
  } catch (const json::parse_error& error) {
    throw std::runtime_error(source + ": not valid JSON near byte " + std::to_string(error.byte));
  } catch (const json::out_of_range&) {
    throw std::runtime_error(source + ": a number in it is out of range");
  }
  if (!value.is_object()) throw std::runtime_error(source + ": it is a JSON " + value.type_name() + ", where an object is needed");
  return value;
}

}  // namespace lockstep::engine
