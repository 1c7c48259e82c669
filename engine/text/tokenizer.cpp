#include "engine/text/tokenizer.h"

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

/// Drops up to `left` spaces at the start of the whole text; once something else came, there are none left to drop.
std::string_view without_leading_spaces(std::string_view bytes, int& left) {
  while (left > 0 && !bytes.empty()) {
    if (bytes[0] != ' ') {
      left = 0;
    } else {
      bytes.remove_prefix(1);
      --left;
    }
  }
  return bytes;
}

Replacement replacement_of(const Tokenizer::TextRules& rules) {
  return rules.replacement_per_byte ? Replacement::PerByte : Replacement::PerSequence;
}

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  const TextRules rules = text_rules();
  int spaces = rules.leading_spaces_to_drop;
  std::string bytes;
  for (const TokenId id : ids) bytes += without_leading_spaces(bytes_of(id, !skip_special), spaces);
  return is_valid_utf8(bytes) ? bytes : to_valid_utf8(bytes, replacement_of(rules));
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      rules_(tokenizer.text_rules()),
      leading_spaces_left_(rules_.leading_spaces_to_drop) {}

std::string IncrementalDetokenizer::append(TokenId id) {
  held_ += without_leading_spaces(tokenizer_->bytes_of(id, !skip_special_), leading_spaces_left_);
  std::string text;
  const std::size_t incomplete = append_certain_text(text, held_, replacement_of(rules_));
  held_.erase(0, held_.size() - incomplete);
  return text;
}

std::string IncrementalDetokenizer::finish() {
  std::string text = to_valid_utf8(held_, replacement_of(rules_));
  held_.clear();
  return text;
}

}  // namespace lockstep::text
