#include "engine/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace lockstep::text {

namespace {

struct Lead {
  unsigned length;  // 0: no character starts with this byte
  unsigned char second_low, second_high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing beyond U+10FFFF
  return {0, 0, 0};
}

std::size_t ascii_prefix(std::string_view bytes) {
  std::size_t position = 0;
  for (std::uint64_t word = 0; position + sizeof(word) <= bytes.size(); position += sizeof(word)) {
    std::memcpy(&word, bytes.data() + position, sizeof(word));
    if (word & 0x8080808080808080u) break;
  }
  while (position < bytes.size() && static_cast<unsigned char>(bytes[position]) < 0x80) ++position;
  return position;
}

void append_replacements(std::string& text, std::size_t length, Replacement replacement) {
  const std::size_t count = replacement == Replacement::PerByte ? length : 1;
  for (std::size_t i = 0; i < count; ++i) text += kReplacementCharacter;
}

}  // namespace

Utf8Step next_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const Lead lead = lead_of(at(0));
  if (lead.length == 0) return {Utf8State::Malformed, 1, 0};
  if (lead.length == 1) return {Utf8State::Valid, 1, at(0)};
  char32_t code_point = at(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8State::Incomplete, i, 0};
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (at(i) < low || at(i) > high) return {Utf8State::Malformed, i, 0};
    code_point = (code_point << 6) | (at(i) & 0x3Fu);
  }
  return {Utf8State::Valid, lead.length, code_point};
}

std::size_t append_certain_text(std::string& text, std::string_view bytes, Replacement replacement) {
  while (!bytes.empty()) {
    std::size_t valid = ascii_prefix(bytes);
    Utf8Step step{Utf8State::Valid, 0, 0};
    while (valid < bytes.size() && (step = next_character(bytes.substr(valid))).state == Utf8State::Valid) valid += step.length;
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    if (step.state == Utf8State::Incomplete) return step.length;
    append_replacements(text, step.length, replacement);
    bytes.remove_prefix(step.length);
  }
  return 0;
}

std::string to_valid_utf8(std::string_view bytes, Replacement replacement) {
  std::string text;
  text.reserve(bytes.size());
  const std::size_t left = append_certain_text(text, bytes, replacement);
  if (left > 0) append_replacements(text, left, replacement);
  return text;
}

bool is_valid_utf8(std::string_view bytes) {
  bytes.remove_prefix(ascii_prefix(bytes));
  while (!bytes.empty()) {
    const Utf8Step step = next_character(bytes);
    if (step.state != Utf8State::Valid) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

bool is_ascii(std::string_view bytes) { return ascii_prefix(bytes) == bytes.size(); }

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::size_t start_of_last_character(std::string_view text) {
  std::size_t position = text.size() - 1;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) --position;
  return position;
}

std::size_t without_spaces_at_end(std::string_view text) {
  while (!text.empty()) {
    const std::size_t last = start_of_last_character(text);
    if (!is_space(next_character(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t spaces_at_start(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = next_character(text.substr(length));
    if (!is_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

}  // namespace lockstep::text
