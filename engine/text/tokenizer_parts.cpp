#include "engine/text/tokenizer_parts.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kLargestText = std::size_t{1} << 30;

/// `added`, as it is to be found: of those that are (not) normalised, with the content as normalisation leaves it.
AddedTokenFinder make_finder(const std::vector<AddedToken>& added, bool normalized, const Normalizer& normalizer) {
  Expression::Scratch scratch;
  std::vector<AddedToken> tokens;
  for (AddedToken token : added) {
    if (token.normalized != normalized) continue;
    if (normalized && is_valid_utf8(token.content)) token.content = normalizer.apply(std::move(token.content), scratch);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return AddedTokenFinder(std::move(tokens));
}

class PartsTokenizer final : public Tokenizer {
 public:
  explicit PartsTokenizer(TokenizerParts parts)
      : parts_(std::move(parts)),
        in_raw_text_(make_finder(parts_.added, false, parts_.normalizer)),
        in_normalized_text_(make_finder(parts_.added, true, parts_.normalizer)) {
    ids_.reserve(parts_.tokens.size());
    for (std::size_t id = 0; id < parts_.tokens.size(); ++id) {
      if (parts_.tokens[id].present) ids_.emplace(parts_.tokens[id].spelling, static_cast<TokenId>(id));
    }
  }

  std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special) const override {
    if (text.size() > kLargestText)
      throw std::runtime_error("a text of " + std::to_string(text.size()) + " bytes is too long; the limit is 1 GiB");
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = to_valid_utf8(text);
    std::vector<TokenId> ids;
    if (add_special) ids = parts_.prefix;
    Splitter::Scratch scratch;
    std::vector<Section> sections;
    in_raw_text_.split(text, parse_special, sections);
    for (const Section& section : sections) {
      if (section.id >= 0) {
        ids.push_back(section.id);
      } else {
        encode_section(text, section.range, parse_special, scratch, ids);
      }
    }
    if (add_special) {
      drop_second_prefix(ids);
      ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
    }
    return ids;
  }

  std::string_view bytes_of(TokenId id, bool include_special) const override {
    const auto* token = find(id);
    return !token || (token->special && !include_special) ? std::string_view() : std::string_view(token->bytes);
  }
  std::size_t vocab_size() const override { return parts_.tokens.size(); }
  bool is_special(TokenId id) const override {
    const auto* token = find(id);
    return token && token->special;
  }
  TokenId bos_id() const override { return parts_.bos_id; }
  TokenId eos_id() const override { return parts_.eos_id; }
  TokenId id_of(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  TextRules text_rules() const override { return parts_.text_rules; }

 private:
  const TokenizerParts::Token* find(TokenId id) const {
    return id < 0 || static_cast<std::size_t>(id) >= parts_.tokens.size() ? nullptr : &parts_.tokens[static_cast<std::size_t>(id)];
  }

  /// `range`: between two added tokens of the raw text.
  void encode_section(std::string_view text, Range range, bool parse_special, Splitter::Scratch& scratch, std::vector<TokenId>& ids) const {
    const bool starts_text = range.begin == 0;
    std::string normalized;
    text = text.substr(range.begin, range.size());
    if (!parts_.normalizer.empty()) text = normalized = parts_.normalizer.apply(std::string(text), scratch.expression);
    if (in_normalized_text_.empty()) return encode_words(text, starts_text, scratch, ids);
    std::vector<Section> sections;
    in_normalized_text_.split(text, parse_special, sections);
    for (const Section& section : sections) {
      if (section.id >= 0) {
        ids.push_back(section.id);
      } else {
        encode_words(text.substr(section.range.begin, section.range.size()), starts_text && section.range.begin == 0, scratch, ids);
      }
    }
  }

  void encode_words(std::string_view text, bool starts_text, Splitter::Scratch& scratch, std::vector<TokenId>& ids) const {
    parts_.splitter.split(text, scratch, starts_text);
    for (const std::string_view word : scratch.words) parts_.encoder->encode(word, ids);
  }

  /// A text that spells the prefix itself (a BOS, as chat templates write it) does not get it twice.
  void drop_second_prefix(std::vector<TokenId>& ids) const {
    const auto length = static_cast<std::ptrdiff_t>(parts_.prefix.size());
    if (ids.size() < 2 * parts_.prefix.size() || !std::equal(parts_.prefix.begin(), parts_.prefix.end(), ids.begin() + length)) return;
    ids.erase(ids.begin(), ids.begin() + length);
  }

  TokenizerParts parts_;
  AddedTokenFinder in_raw_text_, in_normalized_text_;
  std::unordered_map<std::string_view, TokenId> ids_;  // views into parts_.tokens
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(TokenizerParts parts) { return std::make_unique<PartsTokenizer>(std::move(parts)); }

}  // namespace lockstep::text
