// Python's str() and repr().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja_unicode.h"
#include "engine/text/jinja_value.h"

namespace lockstep::text::jinja {

namespace {

void append_escape(std::string& text, char32_t code_point) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const int digits = code_point < 0x100 ? 2 : code_point < 0x10000 ? 4 : 8;
  text += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int i = digits - 1; i >= 0; --i) text.push_back(kDigits[code_point >> (4 * i) & 0xF]);
}

void write_repr(TextBuilder& out, Heap& heap, const Value& value);

void write_items(TextBuilder& out, Heap& heap, const Sequence& sequence, const char* open, const char* close) {
  out.append(open);
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.append(", ");
    write_repr(out, heap, sequence.items[i]);
  }
  if (sequence.is_tuple() && sequence.items.size() == 1) out.append(",");
  out.append(close);
}

void write_sequence(TextBuilder& out, Heap& heap, const Sequence& sequence) {
  switch (sequence.kind) {
    case Sequence::Kind::List: return write_items(out, heap, sequence, "[", "]");
    case Sequence::Kind::Tuple:
    case Sequence::Kind::Group: return write_items(out, heap, sequence, "(", ")");
    case Sequence::Kind::DictKeys: return write_items(out, heap, sequence, "dict_keys([", "])");
    case Sequence::Kind::DictValues: return write_items(out, heap, sequence, "dict_values([", "])");
    case Sequence::Kind::DictItems: return write_items(out, heap, sequence, "dict_items([", "])");
    case Sequence::Kind::Generator: return out.append("<generator object>");
    case Sequence::Kind::Range: break;
  }
  out.append("range(" + integer_text(sequence.range_start) + ", " + integer_text(sequence.range_stop));
  if (sequence.range_step != 1) out.append(", " + integer_text(sequence.range_step));
  out.append(")");
}

void write_dict(TextBuilder& out, Heap& heap, const Dict& dict) {
  out.append("{");
  for (std::size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ");
    write_repr(out, heap, dict.items[i].first);
    out.append(": ");
    write_repr(out, heap, dict.items[i].second);
  }
  out.append("}");
}

void write_repr(TextBuilder& out, Heap& heap, const Value& value) {
  heap.step();
  if (value.is_none()) {
    out.append("None");
  } else if (value.undefined()) {
    out.append("Undefined");
  } else if (const bool* boolean = value.boolean()) {
    out.append(*boolean ? "True" : "False");
  } else if (const double* number = value.floating()) {
    out.append(float_repr(*number));
  } else if (const String* string = value.string()) {
    out.append(string->markup ? "Markup(" + string_repr(string->text) + ")" : string_repr(string->text));
  } else if (value.sequence()) {
    write_sequence(out, heap, *value.sequence());
  } else if (value.dict()) {
    write_dict(out, heap, *value.dict());
  } else if (const Object* object = value.object()) {
    out.append("<" + object->type_name() + ">");
  } else {
    out.append(integer_text(*value.as_integer()));
  }
}

}  // namespace

std::string string_repr(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t start = position;
    const char32_t code_point = next_code_point(text, position);
    if (code_point == static_cast<char32_t>(quote) || code_point == '\\') {
      result.push_back('\\');
      result.push_back(static_cast<char>(code_point));
    } else if (code_point == '\n') {
      result += "\\n";
    } else if (code_point == '\r') {
      result += "\\r";
    } else if (code_point == '\t') {
      result += "\\t";
    } else if (is_printable(code_point)) {
      result += text.substr(start, position - start);
    } else {
      append_escape(result, code_point);
    }
  }
  result.push_back(quote);
  return result;
}

std::string integer_text(Integer number) {
  __extension__ typedef unsigned __int128 Magnitude;
  Magnitude rest = number < 0 ? -static_cast<Magnitude>(number) : static_cast<Magnitude>(number);
  std::string digits;
  do {
    digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest > 0);
  if (number < 0) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto shortest = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<std::size_t>(shortest.ptr - buffer));
  const std::size_t exponent_at = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(exponent_at + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);  // to_chars writes two digits of exponent at least, as Python does
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed);
  std::string result(buffer, fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

std::string to_repr(Heap& heap, const Value& value) {
  TextBuilder out(heap);
  write_repr(out, heap, value);
  return out.take();
}

std::string to_text(Heap& heap, const Value& value) {
  if (value.undefined()) return {};
  if (value.string()) return value.string()->text;
  return to_repr(heap, value);
}

}  // namespace lockstep::text::jinja
