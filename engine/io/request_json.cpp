#include "engine/io/request_json.h"

#include <vector>

#include "engine/io/request_error.h"

namespace lockstep::engine {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw RequestError(400, "invalid_json", "", "the line is not usable JSON: " + message);
}

/// Counts brackets, commas and colons outside of strings. What is not well-formed may slip through here: the parser refuses it.
void check_limits(std::string_view text, const JsonLimits& limits) {
  std::vector<std::size_t> keys = {0};  // by depth
  std::size_t values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') {
      ++values;
      keys.push_back(0);
      if (keys.size() > limits.max_depth + 1)
        refuse("nested deeper than " + std::to_string(limits.max_depth) + " at byte " + std::to_string(i + 1));
    } else if ((c == ']' || c == '}') && keys.size() > 1) {
      keys.pop_back();
    } else if (c == ',') {
      if (++values > limits.max_values) refuse("more than " + std::to_string(limits.max_values) + " values");
    } else if (c == ':') {
      if (++keys.back() > limits.max_keys_per_object) {
        refuse("an object with more than " + std::to_string(limits.max_keys_per_object) + " keys at byte " + std::to_string(i + 1));
      }
    }
  }
}

/// The reason in nlohmann's message "[...] parse error at line 1, column 2: syntax error while parsing X - REASON; last read: '...'".
std::string reason(std::string_view what) {
  if (const std::size_t dash = what.find(" - "); dash != std::string_view::npos) what.remove_prefix(dash + 3);
  what = what.substr(0, what.find("; "));
  if (const std::size_t bracket = what.find("] "); what.starts_with("[") && bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  return std::string(what.substr(0, 120));
}

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits) {
  check_limits(text, limits);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    refuse(reason(error.what()) + " at byte " + std::to_string(error.byte));
  } catch (const Json::exception& error) {  // a number that no double can hold
    refuse(reason(error.what()));
  }
}

std::string shown(const Json& value) {
  constexpr std::size_t kMaxBytes = 80;
  if (value.is_array() && value.size() > kMaxBytes) return "[... " + std::to_string(value.size()) + " values]";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMaxBytes) return text;
  std::size_t end = kMaxBytes - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace lockstep::engine
