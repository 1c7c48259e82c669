// Filters over single values and texts; those over sequences are in jinja_sequence_filters.cpp.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "engine/text/jinja_filter_tables.h"
#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_json.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

/// The reference's `soft_str`: a text keeps being markup.
Value soft_text(Interpreter& in, const Value& subject) {
  return subject.string() ? subject : make_string(in.heap(), to_text(in.heap(), subject));
}

template <std::string (*change)(std::string_view)>
Value changed_text(Interpreter& in, const Value& subject, Bound&) {
  const Value text = soft_text(in, subject);
  return make_string(in.heap(), change(text.string()->text), text.string()->markup);
}

/// Every run behind a blank or an opening bracket starts large.
std::string title_words(std::string_view text) {
  std::string result;
  bool starts_word = true;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t start = position;
    const char32_t code_point = next_code_point(text, position);
    const std::string_view piece = text.substr(start, position - start);
    result += starts_word ? upper(piece) : lower(piece);
    starts_word = is_space(code_point) || piece == "-" || piece == "(" || piece == "{" || piece == "[" || piece == "<";
  }
  return result;
}

Value trim(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value text = soft_text(in, subject);
  const std::string_view characters = arguments.given(0) ? arguments.string(0, {}) : std::string_view();
  const std::string_view* chosen = arguments.given(0) ? &characters : nullptr;
  return make_string(in.heap(), std::string(strip_right(strip_left(text.string()->text, chosen), chosen)), text.string()->markup);
}

Value default_value(Interpreter& in, const Value& subject, Bound& arguments) {
  const bool replace = subject.undefined() || (arguments.flag(1, false) && !truthy(subject));
  if (!replace) return subject;
  return arguments.has(0) ? arguments.at(0) : make_string(in.heap(), {});
}

Value replace(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value text = soft_text(in, subject);
  Arguments call;
  call.positional = {soft_text(in, arguments.at(0)), soft_text(in, arguments.at(1))};
  if (arguments.given(2)) call.positional.push_back(arguments.at(2));
  return in.apply_filter(*find_string_method("replace"), text, call);
}

Value escape(Interpreter& in, const Value& subject, Bound&) {
  if (subject.string() && subject.string()->markup) return subject;
  return make_string(in.heap(), escape_html(to_text(in.heap(), subject)), true);
}

Value force_escape(Interpreter& in, const Value& subject, Bound&) {
  return make_string(in.heap(), escape_html(to_text(in.heap(), subject)), true);
}

Value safe(Interpreter& in, const Value& subject, Bound&) { return make_string(in.heap(), to_text(in.heap(), subject), true); }

Value string(Interpreter& in, const Value& subject, Bound&) { return soft_text(in, subject); }

Value to_integer(Interpreter&, const Value& subject, Bound& arguments) {
  Value otherwise = arguments.has(0) ? arguments.at(0) : Value(Integer{0});
  const Integer base = arguments.integer(1, 10);
  if (base != 0 && (base < 2 || base > 36)) raise("ValueError", "int() base must be >= 2 and <= 36, or 0");
  require_defined(subject);
  if (const String* text = subject.string()) {
    if (const auto number = parse_integer(text->text, static_cast<int>(base))) return Value(*number);
  } else if (const auto integer = subject.as_integer()) {
    return Value(*integer);
  }
  const auto number = subject.string() ? parse_float(subject.string()->text) : subject.as_number();
  if (!number || std::isnan(*number)) return otherwise;
  if (std::isinf(*number)) return otherwise;
  if (std::abs(*number) >= 0x1p126) raise("OverflowError", "an integer is too large (this interpreter has 127 bits)");
  return Value(static_cast<Integer>(*number));
}

Value to_float(Interpreter&, const Value& subject, Bound& arguments) {
  require_defined(subject);
  const auto number = subject.string() ? parse_float(subject.string()->text) : subject.as_number();
  if (number) return Value(*number);
  return arguments.has(0) ? arguments.at(0) : Value(0.0);
}

Value absolute(Interpreter&, const Value& subject, Bound&) {
  if (const auto integer = subject.as_integer()) return Value(*integer < 0 ? -*integer : *integer);
  if (subject.floating()) return Value(std::abs(*subject.floating()));
  raise("TypeError", "bad operand type for abs(): '" + type_name(subject) + "'");
}

/// Python's round(): to even on ties of the exact binary value.
double round_half_even(double number, int precision) {
  if (!std::isfinite(number) || precision > 320) return number;
  if (precision < 0) {
    const double unit = std::pow(10.0, -precision);
    return std::nearbyint(number / unit) * unit;
  }
  char buffer[800];
  const auto text = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed, precision);
  double result = number;
  std::from_chars(buffer, text.ptr, result);
  return result;
}

Value round_number(Interpreter&, const Value& subject, Bound& arguments) {
  const int precision = static_cast<int>(std::clamp<Integer>(arguments.integer(0, 0), -400, 400));
  const std::string_view method = arguments.string(1, "common");
  const auto number = subject.as_number();
  if (!number) raise("TypeError", "type " + type_name(subject) + " doesn't define __round__ method");
  if (method == "common") {
    if (const auto integer = subject.as_integer(); integer && precision >= 0) return Value(*integer);
    const double rounded = round_half_even(*number, precision);
    return subject.floating() ? Value(rounded) : Value(static_cast<Integer>(rounded));
  }
  if (method != "ceil" && method != "floor") raise("FilterArgumentError", "method must be common, ceil or floor");
  const double unit = std::pow(10.0, precision);
  const double scaled = *number * unit;
  if (!std::isfinite(scaled)) raise("OverflowError", "cannot convert float infinity to integer");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value indent(Interpreter& in, const Value& subject, Bound& arguments) {
  if (subject.undefined()) fail_undefined(*subject.undefined());
  if (!subject.string()) raise("TypeError", "indent: a str is needed, not '" + type_name(subject) + "'");
  std::string margin;
  if (arguments.has(0) && arguments.at(0).string()) {
    margin = arguments.at(0).string()->text;
  } else {
    const Integer width = arguments.integer(0, 4);
    in.heap().check_string(width > 0 ? static_cast<std::size_t>(std::min<Integer>(width, Integer{1} << 40)) : 0);
    margin.assign(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' ');
  }
  const bool first = arguments.flag(1, false), blank = arguments.flag(2, false);
  const std::string& text = subject.string()->text;
  TextBuilder out(in.heap());
  const std::string closed = text + "\n";  // as the reference: the last line counts even where it is empty
  const std::vector<std::string_view> lines = split_lines(closed, false);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    in.heap().step();
    if (i > 0) out.append("\n");
    if (i == 0 ? first : (blank || !lines[i].empty())) out.append(margin);
    out.append(lines[i]);
  }
  return make_string(in.heap(), out.take(), subject.string()->markup);
}

Value word_count(Interpreter& in, const Value& subject, Bound&) {
  const std::string text = to_text(in.heap(), subject);
  std::size_t words = 0;
  bool in_word = false;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t c = next_code_point(text, position);
    const bool word = c == '_' || is_alphabetic(c) || is_digit(c);
    if (word && !in_word) ++words;
    in_word = word;
  }
  return Value::integer(words);
}

Value truncate(Interpreter& in, const Value& subject, Bound& arguments) {
  Value text = soft_text(in, subject);
  const String& string = *text.string();
  const Integer wanted = arguments.integer(0, 255);
  const bool kill_words = arguments.flag(1, false);
  const std::string_view end = arguments.string(2, "...");
  const Integer leeway = arguments.given(3) ? arguments.integer(3, 5) : 5;
  const Integer end_length = static_cast<Integer>(code_points(end));
  if (wanted < end_length) raise("AssertionError", "expected length >= " + integer_text(end_length) + ", got " + integer_text(wanted));
  if (leeway < 0) raise("AssertionError", "expected leeway >= 0, got " + integer_text(leeway));
  if (leeway > (Integer{1} << 100) || wanted > (Integer{1} << 100) || static_cast<Integer>(string.length) <= wanted + leeway) return text;
  std::string cut = string.text.substr(0, byte_offset(string.text, static_cast<std::size_t>(wanted - end_length)));
  if (!kill_words) cut = cut.substr(0, cut.rfind(' '));
  return make_string(in.heap(), cut + std::string(end), string.markup);
}

Value center(Interpreter& in, const Value& subject, Bound& arguments) {
  Arguments call;
  call.positional.emplace_back(arguments.integer(0, 80));
  return in.apply_filter(*find_string_method("center"), soft_text(in, subject), call);
}

Value format(Interpreter& in, const Value& subject, Bound& arguments) {
  Heap& heap = in.heap();
  const Arguments& all = arguments.all();
  if (!all.positional.empty() && !all.keyword.empty()) {
    raise("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (all.keyword.empty()) {
    values = make_sequence(heap, all.positional, Sequence::Kind::Tuple);
  } else {
    std::vector<Dict::Item> items;
    for (const auto& [name, value] : all.keyword) items.emplace_back(make_string(heap, name), value);
    values = make_dict(heap, std::move(items));
  }
  return make_string(heap, format_percent(in, to_text(heap, subject), values));
}

Value tojson(Interpreter& in, const Value& subject, Bound& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.flag(0, false);
  style.sort_keys = arguments.flag(3, false);
  if (arguments.given(1)) {
    style.multi_line = true;
    style.item_separator = ",";
    if (arguments.at(1).string()) {
      style.indent = arguments.at(1).string()->text;
    } else {
      const Integer width = arguments.integer(1, 0);
      if (width > 1000) raise("LimitError", "tojson: an indent of over 1000 is not supported");
      style.indent.assign(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' ');
    }
  }
  if (arguments.given(2)) {
    const SequenceRef separators = in.iterate(arguments.at(2));
    if (separators->items.size() != 2 || !separators->items[0].string() || !separators->items[1].string()) {
      raise("TypeError", "tojson: separators must be two strings");
    }
    style.item_separator = separators->items[0].string()->text;
    style.key_separator = separators->items[1].string()->text;
  }
  return make_string(in.heap(), to_json(in.heap(), subject, style));
}

Value strip_tags(Interpreter&, const Value&, Bound&) { raise("TemplateRuntimeError", "the filter 'striptags' is not supported"); }
Value unsupported_pprint(Interpreter&, const Value&, Bound&) { raise("TemplateRuntimeError", "the filter 'pprint' is not supported"); }
Value unsupported_urlencode(Interpreter&, const Value&, Bound&) {
  raise("TemplateRuntimeError", "the filter 'urlencode' is not supported");
}
Value unsupported_random(Interpreter&, const Value&, Bound&) {
  raise("TemplateRuntimeError", "the filter 'random' is not supported: a prompt must be reproducible");
}
Value unsupported_wordwrap(Interpreter&, const Value&, Bound&) { raise("TemplateRuntimeError", "the filter 'wordwrap' is not supported"); }

constexpr Filter kFilters[] = {{"upper", changed_text<upper>},
                               {"lower", changed_text<lower>},
                               {"capitalize", changed_text<capitalize>},
                               {"title", changed_text<title_words>},
                               {"trim", trim, "chars"},
                               {"default", default_value, "default_value boolean"},
                               {"d", default_value, "default_value boolean"},
                               {"replace", replace, "old new count", 2},
                               {"escape", escape},
                               {"e", escape},
                               {"forceescape", force_escape},
                               {"safe", safe},
                               {"string", string},
                               {"int", to_integer, "default base"},
                               {"float", to_float, "default"},
                               {"abs", absolute},
                               {"round", round_number, "precision method"},
                               {"indent", indent, "width first blank"},
                               {"wordcount", word_count},
                               {"truncate", truncate, "length killwords end leeway"},
                               {"center", center, "width"},
                               {"format", format, "*"},
                               {"tojson", tojson, "ensure_ascii indent separators sort_keys"},
                               {"striptags", strip_tags},
                               {"pprint", unsupported_pprint},
                               {"urlencode", unsupported_urlencode},
                               {"random", unsupported_random},
                               {"wordwrap", unsupported_wordwrap, "*"}};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&#34;"; break;
      case '\'': result += "&#39;"; break;
      default: result.push_back(character);
    }
  }
  return result;
}

const Filter* find_filter(std::string_view name) {
  const auto found = std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? find_sequence_filter(name) : found;
}

}  // namespace lockstep::text::jinja
