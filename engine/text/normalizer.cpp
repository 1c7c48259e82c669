#include "engine/text/normalizer.h"

#include <cstdlib>
#include <memory>
#include <stdexcept>

#include <utf8proc.h>

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

std::string to_lowercase(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    if (step.code_point == 0x130) {
      result += "i\xCC\x87";  // the one character whose lower case is two
    } else {
      append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(step.code_point))));
    }
    text.remove_prefix(step.length);
  }
  return result;
}

std::string replace(const std::string& text, const Normalizer::Replace& rule, Expression::Scratch& scratch) {
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

}  // namespace

std::string Normalizer::apply(std::string text, Expression::Scratch& scratch) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      text = to_form(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->prefix);
    } else if (const auto* rule = std::get_if<Replace>(&step)) {
      text = replace(text, *rule, scratch);
    } else {
      text = to_lowercase(text);
    }
    if (text.size() > kLargestText) throw std::runtime_error("the normalised text would have more than 1 GiB");
  }
  return text;
}

}  // namespace lockstep::text
