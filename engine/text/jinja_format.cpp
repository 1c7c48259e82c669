// Python's two ways to format: "%s" % x and "{}".format(x).
#include <algorithm>
#include <cmath>

#include "engine/text/jinja_format_field.h"
#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

std::size_t read_number(std::string_view text, std::size_t& position, std::size_t limit, const char* what) {
  std::size_t number = 0;
  for (; position < text.size() && text[position] >= '0' && text[position] <= '9'; ++position) {
    number = number * 10 + static_cast<std::size_t>(text[position] - '0');
    if (number > limit) raise("ValueError", std::string("a format's ") + what + " of over " + std::to_string(limit) + " is not supported");
  }
  return number;
}

// ---- "%s" % x

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& in, std::string_view format, const Value& arguments)
      : in_(in), format_(format), arguments_(arguments), out_(in.heap()) {}

  std::string run() {
    while (position_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', position_), format_.size());
      out_.append(format_.substr(position_, percent - position_));
      position_ = percent;
      if (position_ < format_.size()) write_field();
    }
    const bool is_tuple = arguments_.sequence() && arguments_.sequence()->is_tuple();
    const bool all_used = is_tuple ? next_ >= arguments_.sequence()->items.size() : next_ > 0 || arguments_.dict() || used_name_;
    const bool may_be_left = !is_tuple && arguments_.sequence();  // as Python: a list may be taken for a mapping
    if (!all_used && !may_be_left) raise("TypeError", "not all arguments converted during string formatting");
    return out_.take();
  }

 private:
  Value next_argument() {
    const Sequence* tuple = arguments_.sequence();
    if (tuple && tuple->is_tuple()) {
      if (next_ >= tuple->items.size()) raise("TypeError", "not enough arguments for format string");
      return tuple->items[next_++];
    }
    if (next_++ > 0) raise("TypeError", "not enough arguments for format string");
    return arguments_;
  }

  std::size_t star_or_number(std::size_t limit, const char* what, bool& negative) {
    if (position_ >= format_.size() || format_[position_] != '*') return read_number(format_, position_, limit, what);
    ++position_;
    const auto number = next_argument().as_integer();
    if (!number) raise("TypeError", "* wants int");
    negative = *number < 0;
    const Integer size = negative ? -*number : *number;
    if (size > static_cast<Integer>(limit))
      raise("ValueError", std::string("a format's ") + what + " of over " + std::to_string(limit) + " is not supported");
    return static_cast<std::size_t>(size);
  }

  void write_field() {
    in_.heap().step();
    ++position_;
    Field field;
    std::optional<Value> named;
    if (position_ < format_.size() && format_[position_] == '(') {
      const std::size_t close = format_.find(')', position_);
      if (close == std::string_view::npos) raise("ValueError", "incomplete format key");
      if (!arguments_.dict()) raise("TypeError", "format requires a mapping");
      const std::string_view name = format_.substr(position_ + 1, close - position_ - 1);
      const Value* found = arguments_.dict()->find(name);
      if (!found) raise("KeyError", string_repr(name));
      named = *found;
      used_name_ = true;
      position_ = close + 1;
    }
    bool left = false, zero = false;
    for (; position_ < format_.size(); ++position_) {
      const char flag = format_[position_];
      if (flag == '-')
        left = true;
      else if (flag == '0')
        zero = true;
      else if (flag == '+')
        field.sign = '+';
      else if (flag == ' ')
        field.sign = field.sign == '+' ? '+' : ' ';
      else if (flag == '#')
        field.alternate = true;
      else
        break;
    }
    bool negative = false;
    field.width = star_or_number(kMaxWidth, "width", negative);
    left |= negative;
    if (position_ < format_.size() && format_[position_] == '.') {
      ++position_;
      bool ignored = false;
      field.precision = star_or_number(kMaxPrecision, "precision", ignored);
    }
    while (position_ < format_.size() && (format_[position_] == 'l' || format_[position_] == 'h' || format_[position_] == 'L')) ++position_;
    if (position_ >= format_.size()) raise("ValueError", "incomplete format");
    const char conversion = format_[position_++];
    if (conversion == '%') return out_.append("%");
    field.align = left ? '<' : '>';
    write_value(field, conversion, zero && !left, named ? *named : next_argument());
  }

  void write_value(Field field, char conversion, bool zero, const Value& value) {
    Heap& heap = in_.heap();
    heap.check_string(field.width);
    switch (conversion) {
      case 's': return out_.append(format_text(field, to_text(heap, value)));
      case 'r':
      case 'a': return out_.append(format_text(field, to_repr(heap, value)));
      case 'c':
        if (value.string() && value.string()->length == 1) return out_.append(format_text(field, value.string()->text));
        break;
      default: break;
    }
    if (zero) {
      field.align = '=';
      field.fill = "0";
    }
    static constexpr std::string_view kIntegers = "diuxXoc", kFloats = "eEfFgG";
    require_defined(value);
    if (kIntegers.find(conversion) != std::string_view::npos) {
      auto integer = value.as_integer();
      const bool any_number = conversion == 'd' || conversion == 'i' || conversion == 'u';
      if (!integer && any_number && value.floating() && std::abs(*value.floating()) < 0x1p126)
        integer = static_cast<Integer>(*value.floating());
      if (!integer) {
        raise("TypeError", std::string("%") + conversion + " format: " + (any_number ? "a real number" : "an integer") +
                               " is required, not " + type_name(value));
      }
      field.type = any_number ? 'd' : conversion;
      return out_.append(format_integer(field, *integer));
    }
    if (kFloats.find(conversion) != std::string_view::npos) {
      if (!value.is_number()) raise("TypeError", "must be real number, not " + type_name(value));
      field.type = conversion;
      return out_.append(format_float(field, *value.as_number()));
    }
    raise("ValueError", "unsupported format character " +
                            string_repr(std::string_view(&conversion, static_cast<unsigned char>(conversion) < 0x80 ? 1 : 0)) +
                            " at index " + std::to_string(position_ - 1));
  }

  Interpreter& in_;
  std::string_view format_;
  const Value& arguments_;
  TextBuilder out_;
  std::size_t position_ = 0;
  std::size_t next_ = 0;
  bool used_name_ = false;
};

// ---- "{}".format(x)

Field parse_field(std::string_view text) {
  Field field;
  std::size_t position = 0;
  const auto at = [&](std::size_t i) { return i < text.size() ? text[i] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  std::size_t after_first = 0;
  if (!text.empty()) next_code_point(text, after_first);
  if (!text.empty() && is_align(at(after_first))) {
    field.fill = std::string(text.substr(0, after_first));
    field.align = at(after_first);
    position = after_first + 1;
  } else if (is_align(at(0))) {
    field.align = at(position++);
  }
  if (at(position) == '+' || at(position) == '-' || at(position) == ' ') field.sign = at(position++);
  if (at(position) == '#') {
    field.alternate = true;
    ++position;
  }
  if (at(position) == '0') {
    if (!field.align) {
      field.align = '=';
      field.fill = "0";
    }
    ++position;
  }
  field.width = read_number(text, position, kMaxWidth, "width");
  if (at(position) == ',' || at(position) == '_') field.grouping = at(position++);
  if (at(position) == '.') {
    const std::size_t before = ++position;
    field.precision = read_number(text, position, kMaxPrecision, "precision");
    if (position == before) raise("ValueError", "Format specifier missing precision");
  }
  if (position < text.size()) field.type = text[position++];
  if (position < text.size()) raise("ValueError", "Invalid format specifier " + string_repr(text));
  return field;
}

std::string format_value(Interpreter& in, const Value& value, std::string_view specification) {
  Heap& heap = in.heap();
  if (specification.empty()) return to_text(heap, value);
  const Field field = parse_field(specification);
  heap.check_string(field.width * field.fill.size());
  static constexpr std::string_view kIntegers = "bcdoxXn", kFloats = "eEfFgG%";
  const auto refuse = [&] {
    raise("ValueError", "Unknown format code " +
                            string_repr(std::string_view(&field.type, static_cast<unsigned char>(field.type) < 0x80 ? 1 : 0)) +
                            " for object of type '" + type_name(value) + "'");
  };
  if (value.string() || value.boolean()) {
    const bool plain = field.type == '\0' || field.type == 's';
    if (plain && value.string() && field.align == '=' && field.fill != "0")
      raise("ValueError", "'=' alignment not allowed in string format specifier");
    if (plain && value.string()) {
      Field text_field = field;
      if (field.align == '=') text_field.align = '<';  // a leading 0 alone
      return format_text(text_field, value.string()->text);
    }
    if (value.string()) refuse();
  }
  if (value.is_number()) {
    const auto integer = value.as_integer();
    if (integer && (field.type == '\0' || kIntegers.find(field.type) != std::string_view::npos)) {
      if (field.precision) raise("ValueError", "Precision not allowed in integer format specifier");
      return format_integer(field, *integer);
    }
    if (field.type == '\0' || field.type == 'n' || kFloats.find(field.type) != std::string_view::npos)
      return format_float(field, *value.as_number());
    refuse();
  }
  raise("TypeError", "unsupported format string passed to " + type_name(value) + ".__format__");
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Arguments& arguments) : in_(in), arguments_(arguments) {}

  std::string run(std::string_view format, int level) {
    if (level > 2) raise("ValueError", "Max string recursion exceeded");
    TextBuilder out(in_.heap());
    for (std::size_t position = 0; position < format.size();) {
      const std::size_t brace = std::min(format.find_first_of("{}", position), format.size());
      out.append(format.substr(position, brace - position));
      position = brace;
      if (position == format.size()) break;
      if (position + 1 < format.size() && format[position + 1] == format[position]) {
        out.append(format[position]);
        position += 2;
      } else if (format[position] == '}') {
        raise("ValueError", "Single '}' encountered in format string");
      } else {
        const std::size_t close = find_close(format, position);
        out.append(field(format.substr(position + 1, close - position - 1), level));
        position = close + 1;
      }
    }
    return out.take();
  }

 private:
  static std::size_t find_close(std::string_view format, std::size_t open) {
    int depth = 0;
    for (std::size_t i = open; i < format.size(); ++i) {
      if (format[i] == '{') ++depth;
      if (format[i] == '}' && --depth == 0) return i;
    }
    raise("ValueError", open + 1 == format.size() ? "Single '{' encountered in format string" : "expected '}' before end of string");
  }

  std::string field(std::string_view text, int level) {
    in_.heap().step();
    // The name ends at '!' or ':', but not inside [...].
    std::size_t end = 0;
    for (bool in_index = false; end < text.size() && (in_index || (text[end] != '!' && text[end] != ':')); ++end) {
      if (text[end] == '[') in_index = true;
      if (text[end] == ']') in_index = false;
    }
    Value value = resolve(text.substr(0, end));
    if (end < text.size() && text[end] == '!') {
      const char conversion = end + 1 < text.size() ? text[end + 1] : '\0';
      if (conversion == 'r' || conversion == 'a') {
        value = make_string(in_.heap(), to_repr(in_.heap(), value));
      } else if (conversion == 's') {
        value = make_string(in_.heap(), to_text(in_.heap(), value));
      } else {
        raise("ValueError", "a conversion of a format must be !s, !r or !a");
      }
      end += 2;
      if (end < text.size() && text[end] != ':') raise("ValueError", "expected ':' after conversion specifier");
    }
    const std::string_view specification = end < text.size() ? text.substr(end + 1) : std::string_view();
    return format_value(in_, value,
                        specification.find('{') == std::string_view::npos ? std::string(specification) : run(specification, level + 1));
  }

  Value resolve(std::string_view name) {
    const std::size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, first_end));
    for (name.remove_prefix(first_end); !name.empty();) {
      if (name[0] == '.') {
        const std::size_t end = std::min(name.find_first_of(".[", 1), name.size());
        value = in_.attribute(value, name.substr(1, end - 1));
        name.remove_prefix(end);
      } else if (name[0] == '[' && name.find(']') != std::string_view::npos) {
        const std::size_t close = name.find(']');
        const std::string_view key = name.substr(1, close - 1);
        value = in_.item(value, is_number(key) ? Value(*parse_integer(key, 10)) : make_string(in_.heap(), std::string(key)));
        name.remove_prefix(close + 1);
      } else {
        raise("ValueError", name[0] == '[' ? "Missing ']' in format string" : "Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  static bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; }

  Value argument(std::string_view name) {
    if (name.empty() || is_number(name)) {
      if (name.empty() ? numbered_ : automatic_ > 0) {
        raise("ValueError", "cannot switch from manual field specification to automatic field numbering");
      }
      numbered_ |= !name.empty();
      const Integer place = name.empty() ? static_cast<Integer>(automatic_++) : *parse_integer(name, 10);
      if (place >= static_cast<Integer>(arguments_.positional.size())) {
        raise("IndexError", "tuple index out of range");
      }
      return arguments_.positional[static_cast<std::size_t>(place)];
    }
    const auto found =
        std::find_if(arguments_.keyword.begin(), arguments_.keyword.end(), [&](const auto& keyword) { return keyword.first == name; });
    if (found == arguments_.keyword.end()) raise("KeyError", string_repr(name));
    return found->second;
  }

  Interpreter& in_;
  const Arguments& arguments_;
  std::size_t automatic_ = 0;
  bool numbered_ = false;
};

}  // namespace

std::string format_percent(Interpreter& interpreter, std::string_view format, const Value& arguments) {
  return PercentFormatter(interpreter, format, arguments).run();
}

std::string format_braces(Interpreter& interpreter, std::string_view format, const Arguments& arguments) {
  return BraceFormatter(interpreter, arguments).run(format, 0);
}

}  // namespace lockstep::text::jinja
