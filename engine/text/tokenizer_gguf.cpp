#include "engine/text/tokenizer_gguf.h"

#include <stdexcept>

#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/gguf_pre_tokenizers.h"
#include "engine/text/json_place.h"

namespace lockstep::text {

void fail(const GgufVocabulary& vocabulary, const std::string& message) { throw std::runtime_error(vocabulary.source + ": " + message); }

TokenType type_of(const GgufVocabulary& vocabulary, std::size_t id) {
  if (!vocabulary.types.empty()) return static_cast<TokenType>(vocabulary.types[id]);
  const auto is = [&](std::int32_t special) { return special >= 0 && static_cast<std::size_t>(special) == id; };
  const bool named = is(vocabulary.bos_id) || is(vocabulary.eos_id) || is(vocabulary.eot_id) || is(vocabulary.pad_id);
  return named ? TokenType::Control : TokenType::Normal;
}

namespace {

const PreTokenizerFamily& family_of(const GgufVocabulary& vocabulary) {
  const std::string name = vocabulary.pre.empty() ? "default" : vocabulary.pre;
  const PreTokenizerFamily* family = find_pre_tokenizer(name);
  if (!family) {
    fail(vocabulary, "the tokenizer's tokenizer.ggml.pre " + in_quotes(name) + " is not supported (supported: " + pre_tokenizer_names() +
                         "); score of token ids and bench work without one");
  }
  return *family;
}

void check(const GgufVocabulary& vocabulary) {
  if (vocabulary.model.empty())
    fail(vocabulary, "the file has no tokenizer (tokenizer.ggml.model is absent); score of token ids and bench work without one");
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama") {
    const bool word_piece = vocabulary.model == "bert";
    fail(vocabulary, "the tokenizer's tokenizer.ggml.model " + in_quotes(vocabulary.model) + (word_piece ? " (WordPiece)" : "") +
                         " is not supported (supported: \"gpt2\", byte-level BPE, and \"llama\", SentencePiece's BPE); " +
                         "score of token ids and bench work without one");
  }
  if (vocabulary.tokens.empty()) fail(vocabulary, "tokenizer.ggml.tokens is absent or empty");
  if (!vocabulary.types.empty() && vocabulary.types.size() != vocabulary.tokens.size()) {
    fail(vocabulary, "tokenizer.ggml.token_type has " + std::to_string(vocabulary.types.size()) + " elements, tokenizer.ggml.tokens " +
                         std::to_string(vocabulary.tokens.size()));
  }
  if (!vocabulary.scores.empty() && vocabulary.scores.size() != vocabulary.tokens.size()) {
    fail(vocabulary, "tokenizer.ggml.scores has " + std::to_string(vocabulary.scores.size()) + " elements, tokenizer.ggml.tokens " +
                         std::to_string(vocabulary.tokens.size()));
  }
  const auto check_id = [&](std::int32_t id, const char* key) {
    if (id < -1 || (id >= 0 && static_cast<std::size_t>(id) >= vocabulary.tokens.size())) {
      fail(vocabulary,
           std::string(key) + " is " + std::to_string(id) + ", but there are " + std::to_string(vocabulary.tokens.size()) + " tokens");
    }
  };
  check_id(vocabulary.bos_id, "tokenizer.ggml.bos_token_id");
  check_id(vocabulary.eos_id, "tokenizer.ggml.eos_token_id");
  check_id(vocabulary.eot_id, "tokenizer.ggml.eot_token_id");
  check_id(vocabulary.pad_id, "tokenizer.ggml.padding_token_id");
  check_id(vocabulary.unknown_id, "tokenizer.ggml.unknown_token_id");
  if (vocabulary.add_bos == 1 && vocabulary.bos_id < 0)
    fail(vocabulary, "tokenizer.ggml.add_bos_token is set, but there is no tokenizer.ggml.bos_token_id");
  if (vocabulary.add_eos == 1 && vocabulary.eos_id < 0)
    fail(vocabulary, "tokenizer.ggml.add_eos_token is set, but there is no tokenizer.ggml.eos_token_id");
}

using Ids = std::unordered_map<std::string, TokenId>;

std::vector<BytePairEncoder::Merge> merges_of(const GgufVocabulary& vocabulary, const Ids& ids) {
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(vocabulary.merges.size());
  const auto bad = [&](std::size_t i, const std::string& why) {
    fail(vocabulary, "tokenizer.ggml.merges, element " + std::to_string(i) + " (\"" + vocabulary.merges[i] + "\"): " + why);
  };
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const std::string& merge = vocabulary.merges[i];
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos) bad(i, "not two tokens with a space between them");
    const auto left = ids.find(merge.substr(0, space));
    const auto right = ids.find(merge.substr(space + 1));
    if (left == ids.end()) bad(i, "the left side is no token");
    if (right == ids.end()) bad(i, "the right side is no token");
    const auto result = ids.find(left->first + right->first);
    if (result != ids.end()) merges.push_back({left->second, right->second, result->second});
  }
  return merges;
}

}  // namespace

TokenizerParts byte_level_parts(const GgufVocabulary& vocabulary) {
  const PreTokenizerFamily& family = family_of(vocabulary);
  const ByteAlphabet alphabet;
  TokenizerParts parts;
  Ids ids, words;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& spelling = vocabulary.tokens[id];
    const TokenType type = type_of(vocabulary, id);
    const bool special = type == TokenType::Control || type == TokenType::Unknown;
    const bool added = special || type == TokenType::UserDefined;
    const auto bytes = alphabet.to_bytes(spelling);
    ids.insert_or_assign(spelling, static_cast<TokenId>(id));
    if (bytes && !added) words.insert_or_assign(*bytes, static_cast<TokenId>(id));
    if (added && !spelling.empty() && spelling.size() <= AddedTokenFinder::kLongestContent) {
      parts.added.push_back({.id = static_cast<TokenId>(id), .content = spelling, .special = special});
    }
    parts.tokens.push_back({spelling, bytes ? *bytes : spelling, special, true});
  }
  parts.encoder = std::make_unique<BytePairEncoder>(std::move(words), merges_of(vocabulary, ids),
                                                    BytePairEncoder::Rules{.whole_words_first = family.whole_words_first});
  std::vector<Splitter::Step> steps;
  for (const char* split : family.splits) {
    if (split != nullptr) steps.push_back({.expression = Expression(split)});
  }
  parts.splitter = Splitter(std::move(steps));
  if (family.nfc) {
    std::vector<Normalizer::Step> normalization;
    normalization.emplace_back(UnicodeForm::Nfc);
    parts.normalizer = Normalizer(std::move(normalization));
  }
  if (family.adds_bos && vocabulary.bos_id >= 0) parts.prefix = {vocabulary.bos_id};
  return parts;
}

std::unique_ptr<Tokenizer> tokenizer_from_gguf(GgufVocabulary vocabulary) {
  check(vocabulary);
  TokenizerParts parts = vocabulary.model == "llama" ? sentencepiece_parts(vocabulary) : byte_level_parts(vocabulary);
  parts.bos_id = vocabulary.bos_id;
  parts.eos_id = vocabulary.eos_id;
  if (vocabulary.add_bos == 0) parts.prefix.clear();
  if (vocabulary.add_bos == 1) parts.prefix = {vocabulary.bos_id};
  if (vocabulary.add_eos == 1) parts.suffix = {vocabulary.eos_id};
  return make_tokenizer(std::move(parts));
}

}  // namespace lockstep::text
