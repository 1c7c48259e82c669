// Numbers and texts in the two ways of Python's formatting.
#include "engine/text/jinja_format_field.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

std::string repeated(std::string_view piece, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += piece;
  return result;
}

std::string padded(const Field& field, const std::string& prefix, const std::string& body, char default_align) {
  const std::size_t size = code_points(prefix) + code_points(body);
  if (size >= field.width) return prefix + body;
  const std::size_t missing = field.width - size;
  switch (field.align ? field.align : default_align) {
    case '<': return prefix + body + repeated(field.fill, missing);
    case '^': return repeated(field.fill, missing / 2) + prefix + body + repeated(field.fill, missing - missing / 2);
    case '=': return prefix + repeated(field.fill, missing) + body;
    default: return repeated(field.fill, missing) + prefix + body;
  }
}

std::string sign_text(const Field& field, bool is_negative) {
  return is_negative ? "-" : field.sign == '+' ? "+" : field.sign == ' ' ? " " : "";
}

std::string grouped(const std::string& digits, char separator, std::size_t group) {
  if (!separator) return digits;
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) result.push_back(separator);
    result.push_back(digits[i]);
  }
  return result;
}

std::string integer_digits(Integer number, int base, bool large) {
  __extension__ typedef unsigned __int128 Magnitude;
  Magnitude rest = number < 0 ? -static_cast<Magnitude>(number) : static_cast<Magnitude>(number);
  const std::string_view symbols = large ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    const auto digit = static_cast<std::size_t>(rest % static_cast<unsigned>(base));
    digits.push_back(symbols[digit]);
    rest /= static_cast<unsigned>(base);
  } while (rest > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_digits(double number, char type, int precision) {
  std::vector<char> buffer(static_cast<std::size_t>(precision) + 400);
  const auto style = type == 'f' ? std::chars_format::fixed : type == 'e' ? std::chars_format::scientific : std::chars_format::general;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, style, precision);
  return std::string(buffer.data(), written.ptr);
}

}  // namespace

std::string format_integer(const Field& field, Integer number) {
  if (field.type == 'c') {
    if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) raise("OverflowError", "%c arg not in range(0x110000)");
    std::string character;
    append_code_point(character, static_cast<char32_t>(number));
    return padded(field, {}, character, '<');
  }
  const int base = field.type == 'b' ? 2 : field.type == 'o' ? 8 : field.type == 'x' || field.type == 'X' ? 16 : 10;
  std::string digits = integer_digits(number, base, field.type == 'X');
  if (field.precision && digits.size() < *field.precision) digits.insert(0, *field.precision - digits.size(), '0');
  std::string prefix = sign_text(field, number < 0);
  if (field.alternate && base != 10) prefix += std::string("0") + field.type;
  return padded(field, prefix, grouped(digits, field.grouping, base == 10 ? 3 : 4), '>');
}

std::string format_float(const Field& field, double number) {
  const char given = field.type ? field.type : '\0';
  const bool large = given == 'F' || given == 'E' || given == 'G';
  const char type = given ? static_cast<char>(given | 0x20) : '\0';
  const bool is_negative = std::signbit(number) && !std::isnan(number);
  const double size = std::abs(number);
  std::string digits;
  if (!std::isfinite(number)) {
    digits = std::isnan(number) ? "nan" : "inf";
  } else if (type == '%') {
    digits = float_digits(size * 100, 'f', static_cast<int>(field.precision.value_or(6)));
  } else if (type == 'e' || type == 'f') {
    digits = float_digits(size, type, static_cast<int>(field.precision.value_or(6)));
  } else if (type == '\0' && !field.precision) {
    digits = float_repr(size);
  } else {
    digits = float_digits(size, 'g', static_cast<int>(std::max<std::size_t>(field.precision.value_or(6), 1)));
    if (type == '\0' && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  }
  if (large) digits = upper(digits);
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  const std::string body = grouped(digits.substr(0, whole), field.grouping, 3) + digits.substr(whole) + (type == '%' ? "%" : "");
  return padded(field, sign_text(field, is_negative), body, '>');
}

std::string format_text(const Field& field, const std::string& text) {
  const std::string cut = field.precision ? text.substr(0, byte_offset(text, *field.precision)) : text;
  return padded(field, {}, cut, '<');
}

}  // namespace lockstep::text::jinja
