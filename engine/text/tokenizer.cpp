#include "engine/text/tokenizer.h"

#include <algorithm>
#include <iterator>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

/// Appends the bytes of the next token, without the spaces that the start of the whole text loses. `rules`: what is left to be done there.
void append_token(std::string& text, std::string_view bytes, Tokenizer::TextRules& rules) {
  if (rules.first_token_without_spaces && !bytes.empty()) {
    rules.first_token_without_spaces = false;
    std::copy_if(bytes.begin(), bytes.end(), std::back_inserter(text), [](char byte) { return byte != ' '; });
    return;
  }
  int& spaces = rules.leading_spaces_to_drop;  // once something else came, there are none to drop
  while (spaces > 0 && !bytes.empty()) {
    spaces = bytes[0] == ' ' ? spaces - 1 : 0;
    if (bytes[0] == ' ') bytes.remove_prefix(1);
  }
  text += bytes;
}

Replacement replacement_of(const Tokenizer::TextRules& rules) {
  return rules.replacement_per_byte ? Replacement::PerByte : Replacement::PerSequence;
}

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  TextRules rules = text_rules();
  std::string bytes;
  for (const TokenId id : ids) append_token(bytes, bytes_of(id, !skip_special), rules);
  return is_valid_utf8(bytes) ? bytes : to_valid_utf8(bytes, replacement_of(rules));
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special, std::span<const TokenId> before)
    : tokenizer_(&tokenizer), skip_special_(skip_special), rules_(tokenizer.text_rules()) {
  std::string dropped;
  for (const TokenId id : before) {
    if (rules_.leading_spaces_to_drop == 0 && !rules_.first_token_without_spaces) break;
    append_token(dropped, tokenizer.bytes_of(id, !skip_special), rules_);
  }
}

std::string IncrementalDetokenizer::append(TokenId id) {
  append_token(held_, tokenizer_->bytes_of(id, !skip_special_), rules_);
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
