#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::engine {

using Json = nlohmann::ordered_json;

/// What a JSON text from outside may ask of us: beyond it the parser would need memory or time out of proportion.
struct JsonLimits {
  std::size_t max_depth = 128;
  std::size_t max_values = 4u << 20;
  std::size_t max_keys_per_object = 1024;
};

/// Parses one JSON text; of keys that occur twice the last counts. @throws RequestError 400 "invalid_json" that says where it is at fault.
Json parse_json(std::string_view text, const JsonLimits& limits = {});

/// A value as it is shown in a message: compact JSON, cut to about 80 bytes.
std::string shown(const Json& value);

}  // namespace lockstep::engine
