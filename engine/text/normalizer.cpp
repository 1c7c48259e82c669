#include "engine/text/normalizer.h"

#include <cstdlib>
#include <memory>
#include <stdexcept>

#include <utf8proc.h>

#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kLargestText = std::size_t{1} << 30;

std::string to_form(const std::string& text, UnicodeForm form) {
  if (is_ascii(text)) return text;
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::Nfc || form == UnicodeForm::Nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::Nfkc || form == UnicodeForm::Nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                                   &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw std::runtime_error(std::string("the text cannot be normalised: ") + utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

template <typename Function>
void for_each_character(std::string_view text, Function function) {
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    function(step.code_point, text.substr(0, step.length));
    text.remove_prefix(step.length);
  }
}

void append_lowercase(std::string& result, char32_t c) {
  if (c == 0x130) {
    result += "i\xCC\x87";  // the one character whose lower case is two
  } else {
    append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

bool nmt_drops(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

bool nmt_makes_space(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

bool is_mark(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

std::string apply_letters(std::string_view text, Normalizer::Letters what) {
  std::string result;
  result.reserve(text.size());
  const ByteAlphabet alphabet;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    switch (what) {
      case Normalizer::Letters::Lowercase: append_lowercase(result, c); break;
      case Normalizer::Letters::StripAccents:
        if (!is_mark(c)) result += bytes;
        break;
      case Normalizer::Letters::Nmt:
        if (!nmt_drops(c)) result += nmt_makes_space(c) ? " " : bytes;
        break;
      case Normalizer::Letters::ByteLevel:
        for (const char byte : bytes) append_utf8(result, alphabet.character_of(static_cast<unsigned char>(byte)));
        break;
    }
  });
  return result;
}

/// The length of the grapheme that `text` starts with.
std::size_t grapheme_length(std::string_view text) {
  utf8proc_int32_t state = 0;
  Utf8Step step = next_character(text);
  std::size_t length = step.length;
  while (length < text.size()) {
    const auto before = static_cast<utf8proc_int32_t>(step.code_point);
    step = next_character(text.substr(length));
    if (utf8proc_grapheme_break_stateful(before, static_cast<utf8proc_int32_t>(step.code_point), &state)) break;
    length += step.length;
  }
  return length;
}

std::string apply_table(std::string_view text, const CharsMap& table) {
  constexpr std::size_t kLongestGrapheme = 5;
  std::string result;
  while (!text.empty()) {
    const std::string_view grapheme = text.substr(0, grapheme_length(text));
    text.remove_prefix(grapheme.size());
    if (const auto whole = grapheme.size() <= kLongestGrapheme ? table.find(grapheme) : std::nullopt) {
      result += *whole;
    } else {
      for_each_character(grapheme, [&](char32_t, std::string_view bytes) { result += table.find(bytes).value_or(bytes); });
    }
    if (result.size() > kLargestText) break;
  }
  return result;
}

}  // namespace

std::string replace_matches(const std::string& text, const Normalizer::Replace& rule, Expression::Scratch& scratch) {
  std::vector<Range> matches;
  rule.what.find_all(text, scratch, matches);
  if (matches.empty()) return text;
  if (rule.with.size() * matches.size() > kLargestText) throw std::runtime_error("the normalised text would have more than 1 GiB");
  std::string result;
  std::size_t done = 0;
  for (const Range match : matches) {
    result.append(text, done, match.begin - done);
    result += rule.with;
    done = match.end;
  }
  result.append(text, done);
  return result;
}

std::string Normalizer::apply(std::string text, Expression::Scratch& scratch) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      text = to_form(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->prefix);
    } else if (const auto* rule = std::get_if<Replace>(&step)) {
      text = replace_matches(text, *rule, scratch);
    } else if (const auto* strip = std::get_if<Strip>(&step)) {
      if (strip->right) text.resize(without_spaces_at_end(text));
      if (strip->left) text.erase(0, spaces_at_start(text));
    } else if (const auto* precompiled = std::get_if<Precompiled>(&step)) {
      text = apply_table(text, precompiled->table);
    } else {
      text = apply_letters(text, std::get<Letters>(step));
    }
    if (text.size() > kLargestText) throw std::runtime_error("the normalised text would have more than 1 GiB");
  }
  return text;
}

}  // namespace lockstep::text
