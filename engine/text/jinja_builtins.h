#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja_value.h"

namespace lockstep::text::jinja {

/// A call's arguments under the names of its parameters.
class Bound {
 public:
  /// `parameters`: names, separated by blanks; a last "*" takes any further ones, which stay in `all()` alone.
  /// @throws TypeError for missing, surplus, repeated or unknown arguments.
  Bound(const char* function, const char* parameters, std::size_t required, Arguments& arguments);

  bool has(std::size_t parameter) const { return parameter < values_.size() && values_[parameter].has_value(); }
  const Value& at(std::size_t parameter) const { return *values_[parameter]; }
  /// Given and not none.
  bool given(std::size_t parameter) const { return has(parameter) && !at(parameter).is_none(); }

  /// Converted, or the default where not given. @throws TypeError for the wrong type, UndefinedError for an undefined one.
  Integer integer(std::size_t parameter, Integer otherwise) const;
  bool flag(std::size_t parameter, bool otherwise) const { return has(parameter) ? truthy(at(parameter)) : otherwise; }
  std::string_view string(std::size_t parameter, std::string_view otherwise) const;
  Arguments& all() const { return arguments_; }
  std::string where() const { return std::string(function_) + "()"; }

 private:
  const char* function_;
  Arguments& arguments_;
  std::vector<std::optional<Value>> values_;
};

struct Filter {
  std::string_view name;
  Value (*function)(Interpreter&, const Value& subject, Bound& arguments);
  const char* parameters = "";
  std::size_t required = 0;
};

struct Test {
  std::string_view name;
  bool (*function)(Interpreter&, const Value& subject, Bound& arguments);
  const char* parameters = "";
  std::size_t required = 0;
};

using Method = Filter;  // its subject is what it is called on

const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
const Method* find_string_method(std::string_view name);
const Method* find_sequence_method(std::string_view name);
const Method* find_dict_method(std::string_view name);
/// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; nothing for another name.
std::optional<Value> find_global(Heap& heap, std::string_view name);

/// Python's int(text, base); base 0 goes by the prefix. Nothing for what is not a number; @throws OverflowError beyond 127 bits.
std::optional<Integer> parse_integer(std::string_view text, int base);
/// Python's float(text).
std::optional<double> parse_float(std::string_view text);

/// `attribute` of a filter: a name, dotted names or an index, looked up step by step.
Value attribute_path(Interpreter& interpreter, const Value& subject, const Value& path, const Value* otherwise = nullptr);

/// Python's `format % arguments` and format.format(...).
std::string format_percent(Interpreter& interpreter, std::string_view format, const Value& arguments);
std::string format_braces(Interpreter& interpreter, std::string_view format, const Arguments& arguments);
/// strftime in UTC and English, whatever the process's locale is.
std::string format_time(std::string_view format, std::int64_t unix_seconds);
std::string escape_html(std::string_view text);

}  // namespace lockstep::text::jinja
