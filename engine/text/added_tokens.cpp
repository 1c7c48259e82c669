#include "engine/text/added_tokens.h"

#include <algorithm>

#include <utf8proc.h>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

/// Rust's \w: alphabetic characters, marks, decimal digits, connectors, joiners.
bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9)) return true;  // joiners; letters in circles
  if ((c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) return true;  // in squares
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(next_character(text.substr(start_of_last_character(text))).code_point);
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word_character(next_character(text).code_point); }

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_of_node_(1, -1), starts_(256, false) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    std::uint32_t node = 0;
    for (const char character : tokens_[i].content) {
      const auto byte = static_cast<unsigned char>(character);
      if (node == 0) starts_[byte] = true;
      const auto [edge, added] = edges_.try_emplace((std::uint64_t{node} << 8) | byte, static_cast<std::uint32_t>(token_of_node_.size()));
      if (added) token_of_node_.push_back(-1);
      node = edge->second;
    }
    token_of_node_[node] = static_cast<std::int32_t>(i);
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  std::int32_t longest = -1;
  std::uint32_t node = 0;
  for (const char character : text) {
    const auto edge = edges_.find((std::uint64_t{node} << 8) | static_cast<unsigned char>(character));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_of_node_[node] >= 0) longest = token_of_node_[node];
  }
  return longest < 0 ? nullptr : &tokens_[static_cast<std::size_t>(longest)];
}

void AddedTokenFinder::split(std::string_view text, bool parse_special, std::vector<Section>& sections) const {
  std::size_t done = 0;  // up to here the text is in sections
  for (std::size_t position = 0; position < text.size();) {
    const AddedToken* token = starts_[static_cast<unsigned char>(text[position])] ? longest_at(text.substr(position)) : nullptr;
    if (!token) {
      ++position;
      continue;
    }
    std::size_t begin = position;
    std::size_t end = position += token->content.size();
    if (token->special && !parse_special) continue;
    if (token->single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token->strip_left) begin = std::max(done, without_spaces_at_end(text.substr(0, begin)));
    if (token->strip_right) end += spaces_at_start(text.substr(end));
    // White space that a token took along on its right is still seen by the next token, as in the reference.
    if (begin > done) sections.push_back({-1, {done, begin}});
    sections.push_back({token->id, {begin, end}});
    done = end;
  }
  if (done < text.size()) sections.push_back({-1, {done, text.size()}});
}

}  // namespace lockstep::text
