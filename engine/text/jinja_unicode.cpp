#include "engine/text/jinja_unicode.h"

#include <algorithm>

#include <utf8proc.h>

namespace lockstep::text::jinja {

namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

utf8proc_category_t category(char32_t code_point) { return utf8proc_category(static_cast<utf8proc_int32_t>(code_point)); }

void append_upper(std::string& text, char32_t code_point) {
  if (code_point == 0xDF) {
    text += "SS";  // the one common letter whose upper case is longer
  } else {
    append_code_point(text, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))));
  }
}

void append_lower(std::string& text, char32_t code_point) {
  append_code_point(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

bool contains(std::string_view characters, char32_t wanted) {
  for (std::size_t position = 0; position < characters.size();) {
    if (next_code_point(characters, position) == wanted) return true;
  }
  return false;
}

bool is_stripped(char32_t code_point, const std::string_view* characters) {
  return characters ? contains(*characters, code_point) : is_space(code_point);
}

bool is_line_end(char32_t code_point) {
  return (code_point >= 0x0A && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x1E) || code_point == 0x85 ||
         code_point == 0x2028 || code_point == 0x2029;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t position = 0; position < text.size();) {
    if (bytes[position] < 0x80) {
      ++position;
      continue;
    }
    utf8proc_int32_t code_point = 0;
    const auto used = utf8proc_iterate(bytes + position, static_cast<utf8proc_ssize_t>(text.size() - position), &code_point);
    if (used <= 0) return false;
    position += static_cast<std::size_t>(used);
  }
  return true;
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
}

std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t position = 0;
  for (; position < text.size(); ++position) {
    if (!is_continuation(text[position]) && index-- == 0) break;
  }
  return position;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) & 0x3Fu : 0u; };
  const unsigned char lead = static_cast<unsigned char>(text[position]);
  const std::size_t start = position;
  if (lead < 0x80) {
    position += 1;
    return lead;
  }
  if (lead < 0xE0) {
    position = std::min(text.size(), start + 2);
    return (lead & 0x1Fu) << 6 | byte(start + 1);
  }
  if (lead < 0xF0) {
    position = std::min(text.size(), start + 3);
    return (lead & 0x0Fu) << 12 | byte(start + 1) << 6 | byte(start + 2);
  }
  position = std::min(text.size(), start + 4);
  return (lead & 0x07u) << 18 | byte(start + 1) << 12 | byte(start + 2) << 6 | byte(start + 3);
}

void append_code_point(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::size_t previous_offset(std::string_view text, std::size_t position) {
  do {
    --position;
  } while (position > 0 && is_continuation(text[position]));
  return position;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t code_point) {
  if (code_point == ' ') return true;
  switch (category(code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

bool is_alphabetic(char32_t code_point) {
  const auto found = category(code_point);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(char32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_LL; }
bool is_digit(char32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_ND; }

std::string upper(std::string_view text) {
  std::string result;
  for (std::size_t position = 0; position < text.size();) append_upper(result, next_code_point(text, position));
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  for (std::size_t position = 0; position < text.size();) append_lower(result, next_code_point(text, position));
  return result;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  std::size_t position = 0;
  const char32_t first = next_code_point(text, position);
  std::string result;
  append_code_point(result, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(first))));
  return result + lower(text.substr(position));
}

std::string swap_case(std::string_view text) {
  std::string result;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    is_upper(code_point) ? append_lower(result, code_point) : append_upper(result, code_point);
  }
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t code_point = next_code_point(text, position);
    const bool cased = is_upper(code_point) || is_lower(code_point) || category(code_point) == UTF8PROC_CATEGORY_LT;
    if (in_word) {
      append_lower(result, code_point);
    } else {
      append_code_point(result, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point))));
    }
    in_word = cased;
  }
  return result;
}

std::string_view strip_left(std::string_view text, const std::string_view* characters) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t next = begin;
    if (!is_stripped(next_code_point(text, next), characters)) break;
    begin = next;
  }
  return text.substr(begin);
}

std::string_view strip_right(std::string_view text, const std::string_view* characters) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t start = previous_offset(text, end);
    std::size_t position = start;
    if (!is_stripped(next_code_point(text, position), characters)) break;
    end = start;
  }
  return text.substr(0, end);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t end = position;
    const char32_t code_point = next_code_point(text, position);
    if (!is_line_end(code_point)) continue;
    if (code_point == '\r' && position < text.size() && text[position] == '\n') ++position;
    lines.push_back(text.substr(begin, (keep_ends ? position : end) - begin));
    begin = position;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace lockstep::text::jinja
