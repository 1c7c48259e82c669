#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/sentencepiece_model.h"
#include "engine/text/tokenizer_gguf.h"
#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr double kMostMergeWork = 4e9;  // squares of the lengths of all pieces, summed: hundreds of times what large vocabularies have
bool is_piece(TokenType type) { return type <= TokenType::Normal || type == TokenType::UserDefined; }  // 0 is "undefined"

/// Each id's place in the order of scores, the best first; equal scores share one.
std::vector<std::int32_t> ranks_of(const GgufVocabulary& vocabulary) {
  std::vector<std::size_t> order(vocabulary.scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto score = [&](std::size_t id) { return vocabulary.scores[id]; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
  std::vector<std::int32_t> ranks(order.size());
  for (std::size_t i = 1; i < order.size(); ++i) ranks[order[i]] = ranks[order[i - 1]] + (score(order[i]) != score(order[i - 1]) ? 1 : 0);
  return ranks;
}

/// SentencePiece merges the two neighbours whose union is the piece with the best score. As a list of merges: each piece, in each way that
/// it is two others.
std::vector<BytePairEncoder::Merge> merges_of(const GgufVocabulary& vocabulary, const TextMap<TokenId>& pieces) {
  double work = 0;
  for (const auto& [spelling, id] : pieces) work += static_cast<double>(spelling.size()) * static_cast<double>(spelling.size());
  if (work > kMostMergeWork) fail(vocabulary, "the pieces of tokenizer.ggml.tokens are too long");
  const std::vector<std::int32_t> ranks = ranks_of(vocabulary);
  std::vector<BytePairEncoder::Merge> merges;
  for (const auto& [spelling, id] : pieces) {
    const std::string_view text = spelling;
    for (std::size_t cut = next_character(text).length; cut < text.size(); cut += next_character(text.substr(cut)).length) {
      const auto left = pieces.find(text.substr(0, cut)), right = pieces.find(text.substr(cut));
      if (left != pieces.end() && right != pieces.end())
        merges.push_back({left->second, right->second, id, ranks[static_cast<std::size_t>(id)]});
    }
  }
  return merges;
}

Normalizer spaces_to_markers(bool add_space_prefix) {
  std::vector<Normalizer::Step> steps;
  if (add_space_prefix) steps.emplace_back(Normalizer::Prepend{" "});
  steps.emplace_back(Normalizer::Replace{Expression::literal(" "), std::string(kSpaceMarker)});
  return Normalizer(std::move(steps));
}

void check(const GgufVocabulary& vocabulary) {
  if (vocabulary.scores.empty()) fail(vocabulary, "tokenizer.ggml.scores is absent, which a vocabulary of kind \"llama\" needs");
  const auto wrong = std::find_if_not(vocabulary.scores.begin(), vocabulary.scores.end(), [](float score) { return std::isfinite(score); });
  if (wrong != vocabulary.scores.end())
    fail(vocabulary, "tokenizer.ggml.scores, element " + std::to_string(wrong - vocabulary.scores.begin()) + ": is not finite");
}

}  // namespace

TokenizerParts sentencepiece_parts(const GgufVocabulary& vocabulary) {
  check(vocabulary);
  TokenizerParts parts;
  TextMap<TokenId> pieces;
  std::unordered_map<std::string, TokenId> words;
  TokenId unknown = vocabulary.unknown_id;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& spelling = vocabulary.tokens[i];
    const TokenType type = type_of(vocabulary, i);
    const int byte = type == TokenType::Byte ? fallback_byte(spelling) : -1;
    if (type == TokenType::Unknown && unknown < 0) unknown = id;
    if (type == TokenType::Byte && byte < 0)
      fail(vocabulary, "the token " + std::to_string(id) + " is of the type byte, but not spelled <0x..>");
    if (is_piece(type) && !spelling.empty()) pieces.emplace(spelling, id);
    if (byte >= 0) words.emplace(fallback_token(static_cast<unsigned char>(byte)), id);
    append_piece(parts, spelling, type, kUnknownText);
    if (type == TokenType::UserDefined && !spelling.empty() && spelling.size() <= AddedTokenFinder::kLongestContent)
      parts.added.push_back({.id = id, .content = parts.tokens.back().bytes});
  }
  for (const auto& [spelling, id] : pieces) words.insert_or_assign(spelling, id);
  parts.encoder = std::make_unique<BytePairEncoder>(
      std::move(words), merges_of(vocabulary, pieces),
      BytePairEncoder::Rules{.symbols_are_bytes = false, .byte_fallback = true, .unknown_id = unknown, .fuse_unknown = true});
  const bool add_space_prefix = vocabulary.add_space_prefix != 0;
  parts.normalizer = spaces_to_markers(add_space_prefix);
  parts.text_rules = {.leading_spaces_to_drop = add_space_prefix ? 1 : 0, .replacement_per_byte = true};
  if (vocabulary.bos_id >= 0) parts.prefix = {vocabulary.bos_id};
  return parts;
}

}  // namespace lockstep::text
