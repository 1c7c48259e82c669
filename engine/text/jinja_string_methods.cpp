// The methods of str. A method of markup gives markup where it gives a text.
#include <algorithm>
#include <array>

#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

const String& self(const Value& subject) { return *subject.string(); }

Value like(Interpreter& in, const Value& subject, std::string text) {
  return make_string(in.heap(), std::move(text), self(subject).markup);
}

Value pieces(Interpreter& in, const Value& subject, const std::vector<std::string_view>& parts,
             Sequence::Kind kind = Sequence::Kind::List) {
  in.heap().check_elements(parts.size(), sizeof(Value) + sizeof(String));
  std::vector<Value> values;
  values.reserve(parts.size());
  for (const std::string_view part : parts) values.push_back(like(in, subject, std::string(part)));
  return make_sequence(in.heap(), std::move(values), kind);
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& in, const Value& subject, Bound&) {
  return like(in, subject, change(self(subject).text));
}

template <bool left, bool right>
Value strip(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::string_view characters = arguments.given(0) ? arguments.string(0, {}) : std::string_view();
  const std::string_view* chosen = arguments.given(0) ? &characters : nullptr;
  std::string_view text = self(subject).text;
  if (left) text = strip_left(text, chosen);
  if (right) text = strip_right(text, chosen);
  return like(in, subject, std::string(text));
}

std::vector<std::string_view> split_blanks(std::string_view text, std::size_t limit) {
  std::vector<std::string_view> parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    std::size_t end = 0;
    while (end < text.size()) {
      std::size_t next = end;
      if (is_space(next_code_point(text, next))) break;
      end = next;
    }
    if (parts.size() == limit) end = text.size();
    parts.push_back(text.substr(0, end));
    text.remove_prefix(parts.size() > limit ? text.size() : end);
  }
  return parts;
}

std::vector<std::string_view> split_blanks_right(std::string_view text, std::size_t limit) {
  std::vector<std::string_view> parts;
  for (text = strip_right(text); !text.empty(); text = strip_right(text)) {
    std::size_t begin = text.size();
    while (begin > 0) {
      const std::size_t previous = previous_offset(text, begin);
      std::size_t position = previous;
      if (is_space(next_code_point(text, position))) break;
      begin = previous;
    }
    if (parts.size() == limit) begin = 0;
    parts.push_back(text.substr(begin));
    text = text.substr(0, parts.size() > limit ? 0 : begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::size_t split_limit(const Bound& arguments) {
  const Integer limit = arguments.integer(1, -1);
  return limit < 0 || limit > (1 << 30) ? std::size_t{1} << 30 : static_cast<std::size_t>(limit);
}

std::string_view separator_of(const Bound& arguments) {
  const std::string_view separator = arguments.string(0, {});
  if (separator.empty()) raise("ValueError", "empty separator");
  return separator;
}

Value split(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::size_t limit = split_limit(arguments);
  std::string_view text = self(subject).text;
  if (!arguments.given(0)) return pieces(in, subject, split_blanks(text, limit));
  const std::string_view separator = separator_of(arguments);
  std::vector<std::string_view> parts;
  for (std::size_t found = text.find(separator); found != std::string_view::npos && parts.size() < limit; found = text.find(separator)) {
    parts.push_back(text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.push_back(text);
  return pieces(in, subject, parts);
}

Value rsplit(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::size_t limit = split_limit(arguments);
  std::string_view text = self(subject).text;
  if (!arguments.given(0)) return pieces(in, subject, split_blanks_right(text, limit));
  const std::string_view separator = separator_of(arguments);
  std::vector<std::string_view> parts;
  for (std::size_t found = text.rfind(separator); found != std::string_view::npos && parts.size() < limit; found = text.rfind(separator)) {
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return pieces(in, subject, parts);
}

Value splitlines(Interpreter& in, const Value& subject, Bound& arguments) {
  return pieces(in, subject, split_lines(self(subject).text, arguments.flag(0, false)));
}

template <bool from_right>
Value partition(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::string_view text = self(subject).text, separator = separator_of(arguments);
  const std::size_t found = from_right ? text.rfind(separator) : text.find(separator);
  if (found == std::string_view::npos) {
    return pieces(in, subject, from_right ? std::vector<std::string_view>{"", "", text} : std::vector<std::string_view>{text, "", ""},
                  Sequence::Kind::Tuple);
  }
  return pieces(in, subject, {text.substr(0, found), separator, text.substr(found + separator.size())}, Sequence::Kind::Tuple);
}

/// The part that optional start and end arguments choose, and its byte offset. Nothing where start lies behind the end of the text.
std::optional<std::pair<std::string_view, std::size_t>> window(const Value& subject, const Bound& arguments, std::size_t first) {
  const String& string = self(subject);
  const Integer length = static_cast<Integer>(string.length);
  const auto place = [&](std::size_t parameter, Integer otherwise) {
    const Integer given = arguments.given(parameter) ? arguments.integer(parameter, otherwise) : otherwise;
    return given < 0 ? std::max<Integer>(given + length, 0) : given;
  };
  const Integer start = place(first, 0), end = std::min(place(first + 1, length), length);
  if (start > end) return std::nullopt;
  const std::size_t begin = byte_offset(string.text, static_cast<std::size_t>(start));
  return std::pair{std::string_view(string.text).substr(begin, byte_offset(string.text, static_cast<std::size_t>(end)) - begin), begin};
}

template <bool at_end>
Value affix(Interpreter& in, const Value& subject, Bound& arguments) {
  const auto part = window(subject, arguments, 1);
  const auto matches = [&](const Value& candidate) {
    require_defined(candidate);
    if (!candidate.string()) {
      raise("TypeError",
            std::string(at_end ? "endswith" : "startswith") + " first arg must be str or a tuple of str, not " + type_name(candidate));
    }
    const std::string& wanted = candidate.string()->text;
    return part && (at_end ? part->first.ends_with(wanted) : part->first.starts_with(wanted));
  };
  const Value& wanted = arguments.at(0);
  if (!wanted.sequence() || !wanted.sequence()->is_tuple()) return Value(matches(wanted));
  in.heap().step(wanted.sequence()->items.size());
  return Value(std::any_of(wanted.sequence()->items.begin(), wanted.sequence()->items.end(), matches));
}

template <bool from_right, bool must_find>
Value find(Interpreter&, const Value& subject, Bound& arguments) {
  const std::string_view wanted = arguments.string(0, {});
  const auto part = window(subject, arguments, 1);
  const std::size_t found = !part ? std::string_view::npos : from_right ? part->first.rfind(wanted) : part->first.find(wanted);
  if (found == std::string_view::npos) {
    if (must_find) raise("ValueError", "substring not found");
    return Value(Integer{-1});
  }
  return Value::integer(code_points(std::string_view(self(subject).text).substr(0, part->second + found)));
}

Value count(Interpreter&, const Value& subject, Bound& arguments) {
  const std::string_view wanted = arguments.string(0, {});
  const auto part = window(subject, arguments, 1);
  if (!part) return Value(Integer{0});
  if (wanted.empty()) return Value::integer(code_points(part->first) + 1);
  std::size_t times = 0;
  for (std::size_t at = part->first.find(wanted); at != std::string_view::npos; at = part->first.find(wanted, at + wanted.size())) ++times;
  return Value::integer(times);
}

Value replace(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::string_view text = self(subject).text, old = arguments.string(0, {}), fresh = arguments.string(1, {});
  const Integer limit = arguments.integer(2, -1);
  TextBuilder out(in.heap());
  std::size_t position = 0;
  Integer times = 0;
  while (limit < 0 || times < limit) {
    const std::size_t found = text.find(old, position);
    if (found == std::string_view::npos) break;
    in.heap().step(1 + fresh.size() / 256);
    ++times;
    if (old.empty()) {  // before every character and at the end
      out.append(fresh);
      if (position == text.size()) break;
      const std::size_t start = position;
      next_code_point(text, position);
      out.append(text.substr(start, position - start));
      continue;
    }
    out.append(text.substr(position, found - position));
    out.append(fresh);
    position = found + old.size();
  }
  out.append(text.substr(std::min(position, text.size())));
  return like(in, subject, out.take());
}

Value join(Interpreter& in, const Value& subject, Bound& arguments) {
  const SequenceRef items = in.iterate(arguments.at(0));
  TextBuilder out(in.heap());
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    const Value& item = items->items[i];
    if (!item.string()) raise("TypeError", "sequence item " + std::to_string(i) + ": expected str instance, " + type_name(item) + " found");
    if (i > 0) out.append(self(subject).text);
    out.append(item.string()->text);
    in.heap().step();
  }
  return like(in, subject, out.take());
}

Value format(Interpreter& in, const Value& subject, Bound& arguments) {
  return like(in, subject, format_braces(in, self(subject).text, arguments.all()));
}

Value format_map(Interpreter& in, const Value& subject, Bound& arguments) {
  if (!arguments.at(0).dict()) raise("TypeError", "format_map() needs a mapping, not '" + type_name(arguments.at(0)) + "'");
  Arguments values;
  for (const auto& [key, value] : arguments.at(0).dict()->items) {
    if (key.string()) values.keyword.emplace_back(key.string()->text, value);
  }
  return like(in, subject, format_braces(in, self(subject).text, values));
}

enum class Side { Left, Right, Both };

template <Side text_side>
Value justify(Interpreter& in, const Value& subject, Bound& arguments) {
  const String& string = self(subject);
  const std::string_view fill = arguments.string(1, " ");
  if (code_points(fill) != 1) raise("TypeError", "The fill character must be exactly one character long");
  const Integer width = std::min<Integer>(arguments.integer(0, 0), Integer{1} << 40);
  if (width <= static_cast<Integer>(string.length)) return subject;
  const std::size_t missing = static_cast<std::size_t>(width) - string.length;
  in.heap().check_string(missing * fill.size() + string.text.size());
  in.heap().step(missing / 64);
  // Python's rule for an odd rest: to the left if the width is odd, too.
  const std::size_t left = text_side == Side::Left    ? 0
                           : text_side == Side::Right ? missing
                                                      : missing / 2 + (missing & static_cast<std::size_t>(width) & 1);
  std::string result;
  for (std::size_t i = 0; i < left; ++i) result += fill;
  result += string.text;
  for (std::size_t i = left; i < missing; ++i) result += fill;
  return like(in, subject, std::move(result));
}

Value zfill(Interpreter& in, const Value& subject, Bound& arguments) {
  const String& string = self(subject);
  const Integer width = std::min<Integer>(arguments.integer(0, 0), Integer{1} << 40);
  if (width <= static_cast<Integer>(string.length)) return subject;
  const std::size_t missing = static_cast<std::size_t>(width) - string.length;
  in.heap().check_string(missing + string.text.size());
  const std::size_t sign = !string.text.empty() && (string.text[0] == '-' || string.text[0] == '+') ? 1 : 0;
  return like(in, subject, string.text.substr(0, sign) + std::string(missing, '0') + string.text.substr(sign));
}

Value expand_tabs(Interpreter& in, const Value& subject, Bound& arguments) {
  const Integer size = std::clamp<Integer>(arguments.integer(0, 8), 0, Integer{1} << 40);
  TextBuilder out(in.heap());
  std::size_t column = 0;
  const std::string_view text = self(subject).text;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t start = position;
    const char32_t code_point = next_code_point(text, position);
    if (code_point == '\t') {
      const std::size_t blanks = size == 0 ? 0 : static_cast<std::size_t>(size) - column % static_cast<std::size_t>(size);
      out.repeat(' ', blanks);
      column += blanks;
      continue;
    }
    column = code_point == '\n' || code_point == '\r' ? 0 : column + 1;
    out.append(text.substr(start, position - start));
  }
  return like(in, subject, out.take());
}

template <bool at_end>
Value remove_affix(Interpreter& in, const Value& subject, Bound& arguments) {
  std::string_view text = self(subject).text;
  const std::string_view wanted = arguments.string(0, {});
  if (at_end && text.ends_with(wanted)) text.remove_suffix(wanted.size());
  if (!at_end && text.starts_with(wanted)) text.remove_prefix(wanted.size());
  return like(in, subject, std::string(text));
}

bool is_letter_or_digit(char32_t c) { return is_alphabetic(c) || is_digit(c); }
bool is_ascii(char32_t c) { return c < 0x80; }

/// All characters are of a class; for an empty text `empty`.
template <bool (*belongs)(char32_t), bool empty>
Value all_of(Interpreter&, const Value& subject, Bound&) {
  const std::string_view text = self(subject).text;
  for (std::size_t position = 0; position < text.size();) {
    if (!belongs(next_code_point(text, position))) return Value(false);
  }
  return Value(empty || !text.empty());
}

/// Some character is of a class, and none of the opposite one.
template <bool (*wanted)(char32_t), bool (*unwanted)(char32_t)>
Value all_cased(Interpreter&, const Value& subject, Bound&) {
  const std::string_view text = self(subject).text;
  bool any = false;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    if (unwanted(code_point)) return Value(false);
    any |= wanted(code_point);
  }
  return Value(any);
}

Value is_identifier(Interpreter&, const Value& subject, Bound&) {
  const std::string_view text = self(subject).text;
  for (std::size_t position = 0; position < text.size();) {
    const bool first = position == 0;
    const char32_t code_point = next_code_point(text, position);
    if (code_point != '_' && !is_alphabetic(code_point) && (first || !is_digit(code_point))) return Value(false);
  }
  return Value(!text.empty());
}

Value is_title(Interpreter&, const Value& subject, Bound&) {
  const std::string_view text = self(subject).text;
  bool any = false, in_word = false;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    if (is_upper(code_point) ? in_word : is_lower(code_point) && !in_word) return Value(false);
    in_word = is_upper(code_point) || is_lower(code_point);
    any |= in_word;
  }
  return Value(any);
}

constexpr Method kMethods[] = {{"upper", changed<upper>},
                               {"lower", changed<lower>},
                               {"casefold", changed<lower>},
                               {"title", changed<title>},
                               {"capitalize", changed<capitalize>},
                               {"swapcase", changed<swap_case>},
                               {"strip", strip<true, true>, "chars"},
                               {"lstrip", strip<true, false>, "chars"},
                               {"rstrip", strip<false, true>, "chars"},
                               {"split", split, "sep maxsplit"},
                               {"rsplit", rsplit, "sep maxsplit"},
                               {"splitlines", splitlines, "keepends"},
                               {"partition", partition<false>, "sep", 1},
                               {"rpartition", partition<true>, "sep", 1},
                               {"startswith", affix<false>, "prefix start end", 1},
                               {"endswith", affix<true>, "suffix start end", 1},
                               {"find", find<false, false>, "sub start end", 1},
                               {"rfind", find<true, false>, "sub start end", 1},
                               {"index", find<false, true>, "sub start end", 1},
                               {"rindex", find<true, true>, "sub start end", 1},
                               {"count", count, "sub start end", 1},
                               {"replace", replace, "old new count", 2},
                               {"join", join, "iterable", 1},
                               {"format", format, "*"},
                               {"format_map", format_map, "mapping", 1},
                               {"center", justify<Side::Both>, "width fillchar", 1},
                               {"ljust", justify<Side::Left>, "width fillchar", 1},
                               {"rjust", justify<Side::Right>, "width fillchar", 1},
                               {"zfill", zfill, "width", 1},
                               {"expandtabs", expand_tabs, "tabsize"},
                               {"removeprefix", remove_affix<false>, "prefix", 1},
                               {"removesuffix", remove_affix<true>, "suffix", 1},
                               {"isdigit", all_of<is_digit, false>},
                               {"isdecimal", all_of<is_digit, false>},
                               {"isnumeric", all_of<is_digit, false>},
                               {"isalpha", all_of<is_alphabetic, false>},
                               {"isalnum", all_of<is_letter_or_digit, false>},
                               {"isspace", all_of<is_space, false>},
                               {"isascii", all_of<is_ascii, true>},
                               {"isprintable", all_of<is_printable, true>},
                               {"isupper", all_cased<is_upper, is_lower>},
                               {"islower", all_cased<is_lower, is_upper>},
                               {"istitle", is_title},
                               {"isidentifier", is_identifier}};

}  // namespace

const Method* find_string_method(std::string_view name) {
  const auto found = std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method& method) { return method.name == name; });
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace lockstep::text::jinja
