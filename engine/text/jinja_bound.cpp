// Arguments under their parameters' names, and Python's int() and float() of texts.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

struct ParameterList {
  std::vector<std::string_view> names;
  bool variadic = false;
};

ParameterList split_parameters(std::string_view text) {
  ParameterList result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view name = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (name == "*") {
      result.variadic = true;
    } else {
      result.names.push_back(name);
    }
  }
  return result;
}

/// Digits with single underscores between them, without those; empty where that is not what `text` is.
std::string plain_digits(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') return {};
    } else {
      digits.push_back(text[i]);
    }
  }
  return digits;
}

}  // namespace

Bound::Bound(const char* function, const char* parameters, std::size_t required, Arguments& arguments)
    : function_(function), arguments_(arguments) {
  const ParameterList list = split_parameters(parameters);
  values_.resize(list.names.size());
  if (arguments.positional.size() > list.names.size() && !list.variadic) {
    raise("TypeError", where() + " takes " + std::to_string(list.names.size()) + " arguments at most, not " +
                           std::to_string(arguments.positional.size()));
  }
  for (std::size_t i = 0; i < std::min(list.names.size(), arguments.positional.size()); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto found = std::find(list.names.begin(), list.names.end(), name);
    if (found == list.names.end()) {
      if (list.variadic) continue;
      raise("TypeError", where() + " got an unexpected keyword argument " + string_repr(name));
    }
    auto& slot = values_[static_cast<std::size_t>(found - list.names.begin())];
    if (slot) raise("TypeError", where() + " got multiple values for argument " + string_repr(name));
    slot = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!values_[i]) raise("TypeError", where() + " missing the required argument " + string_repr(list.names[i]));
  }
}

Integer Bound::integer(std::size_t parameter, Integer otherwise) const {
  if (!has(parameter)) return otherwise;
  require_defined(at(parameter));
  const auto integer = at(parameter).as_integer();
  if (!integer) raise("TypeError", "'" + type_name(at(parameter)) + "' object cannot be interpreted as an integer");
  return *integer;
}

std::string_view Bound::string(std::size_t parameter, std::string_view otherwise) const {
  if (!has(parameter)) return otherwise;
  require_defined(at(parameter));
  if (!at(parameter).string()) raise("TypeError", where() + ": a str is needed, not '" + type_name(at(parameter)) + "'");
  return at(parameter).string()->text;
}

std::optional<Integer> parse_integer(std::string_view text, int base) {
  text = strip_right(strip_left(text));
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char marker = static_cast<char>(text[1] | 0x20);
    const int marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
    if (marked > 0 && (base == 0 || base == marked)) {
      base = marked;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  const std::string digits = plain_digits(text);
  if (digits.empty()) return std::nullopt;
  if (base == 0) base = 10;
  const Integer limit = static_cast<Integer>(~static_cast<unsigned long long>(0)) << 62;  // about 2**126
  Integer number = 0;
  for (const char character : digits) {
    const char lower = static_cast<char>(character | 0x20);
    const int digit = character >= '0' && character <= '9' ? character - '0' : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (number > limit / base)
      raise("OverflowError", "the integer " + digits.substr(0, 60) + " is too large (this interpreter has 127 bits)");
    number = number * base + digit;
  }
  return is_negative ? -number : number;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_right(strip_left(text));
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string word = lower(text);
  double number = 0;
  if (word == "inf" || word == "infinity") {
    number = HUGE_VAL;
  } else if (word == "nan") {
    number = std::nan("");
  } else {
    const std::string digits = plain_digits(text);
    if (digits.empty() || digits.find_first_not_of("0123456789.eE+-") != std::string::npos || digits[0] == '-' || digits[0] == '+')
      return std::nullopt;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (parsed.ptr != digits.data() + digits.size()) return std::nullopt;
    if (parsed.ec == std::errc::result_out_of_range) {
      number = digits.find("e-") != std::string::npos || digits.find("E-") != std::string::npos || digits[0] == '0' ? 0.0 : HUGE_VAL;
    }
  }
  return is_negative ? -number : number;
}

}  // namespace lockstep::text::jinja
