#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::engine {

/// What a JSON text from outside may cost. Counted before anything is built from it.
struct JsonLimits {
  std::size_t max_depth = 32;
  std::size_t max_values = 4'000'000;
  bool refuse_duplicate_keys = false;  // else the last one counts
};

/// Reads one JSON object. A UTF-8 byte order mark is skipped.
/// @throws std::runtime_error that begins with `source`: malformed (with the byte), not an object, too deep, too much.
nlohmann::json parse_json_object(std::string_view text, const std::string& source, const JsonLimits& limits = {});

}  // namespace lockstep::engine
