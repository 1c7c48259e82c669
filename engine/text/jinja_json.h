#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/text/jinja_value.h"

namespace lockstep::text::jinja {

/// @throws TemplateError for text that is not UTF-8 and for nesting over kMaxValueDepth.
Value from_json(Heap& heap, const nlohmann::ordered_json& json);

/// The options of Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multi_line = false;  // with `indent`; else all on one line
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// @throws TypeError for what json.dumps refuses.
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace lockstep::text::jinja
