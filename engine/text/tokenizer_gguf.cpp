#include <algorithm>
#include <array>
#include <stdexcept>

#include "engine/text/bpe_tokenizer.h"
#include "engine/text/byte_alphabet.h"

namespace lockstep::text {

namespace {

// Types of a token in tokenizer.ggml.token_type.
constexpr std::int32_t kUnknownType = 2;
constexpr std::int32_t kControlType = 3;
constexpr std::int32_t kUserDefinedType = 4;

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// What a value of tokenizer.ggml.pre stands for.
struct Family {
  const char* name;
  std::array<const char*, 2> splits;  // the second may be null
  bool whole_words_first = false;
  bool adds_bos = false;  // where the file does not say
  bool nfc = false;
};

std::vector<Family> families() {
  return {
      {"default", {kGpt2Split, nullptr}},
      {"gpt-2", {kGpt2Split, nullptr}},
      {"phi-2", {kGpt2Split, nullptr}},
      {"mpt", {kGpt2Split, nullptr}},
      {"olmo", {kGpt2Split, nullptr}},
      {"smollm", {kDigit, kGpt2Split}},
      {"starcoder", {kDigit, kGpt2Split}},
      {"refact", {kDigit, kGpt2Split}},
      {"command-r", {kDigit, kGpt2Split}},
      {"llama-bpe", {kLlama3Split, nullptr}, true, true},
      {"llama3", {kLlama3Split, nullptr}, true, true},
      {"llama-v3", {kLlama3Split, nullptr}, true, true},
      {"smaug-bpe", {kLlama3Split, nullptr}},
      {"dbrx", {kLlama3Split, nullptr}},
      {"glm4", {kLlama3Split, nullptr}},
      {"qwen2", {kQwen2Split, nullptr}, false, false, true},
      {"stablelm2", {kQwen2Split, nullptr}},
      {"gpt-4o", {kGpt4oSplit, nullptr}},
  };
}

[[noreturn]] void fail(const GgufVocabulary& vocabulary, const std::string& message) {
  throw std::runtime_error(vocabulary.source + ": " + message);
}

Family family_of(const GgufVocabulary& vocabulary) {
  const std::string name = vocabulary.pre.empty() ? "default" : vocabulary.pre;
  std::string known;
  for (const Family& family : families()) {
    if (name == family.name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  fail(vocabulary,
       "the tokenizer's tokenizer.ggml.pre \"" + name + "\" is not supported (supported: " + known + "); prompts of token ids still work");
}

void check(const GgufVocabulary& vocabulary) {
  if (vocabulary.model.empty())
    fail(vocabulary, "the file has no tokenizer (tokenizer.ggml.model is absent); prompts of token ids still work");
  if (vocabulary.model != "gpt2") {
    const std::string what = vocabulary.model == "llama" ? " (SentencePiece with scores)" : "";
    fail(vocabulary, "the tokenizer's tokenizer.ggml.model \"" + vocabulary.model + "\"" + what +
                         " is not supported (supported: \"gpt2\", byte-level BPE); prompts of token ids still work");
  }
  if (vocabulary.tokens.empty()) fail(vocabulary, "tokenizer.ggml.tokens is absent or empty");
  if (!vocabulary.types.empty() && vocabulary.types.size() != vocabulary.tokens.size()) {
    fail(vocabulary, "tokenizer.ggml.token_type has " + std::to_string(vocabulary.types.size()) + " elements, tokenizer.ggml.tokens " +
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

std::int32_t type_of(const GgufVocabulary& vocabulary, std::size_t id) {
  if (!vocabulary.types.empty()) return vocabulary.types[id];
  const auto is = [&](std::int32_t special) { return special >= 0 && static_cast<std::size_t>(special) == id; };
  return is(vocabulary.bos_id) || is(vocabulary.eos_id) || is(vocabulary.eot_id) || is(vocabulary.pad_id) ? kControlType : 1;
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

std::unique_ptr<Tokenizer> tokenizer_from_gguf(GgufVocabulary vocabulary) {
  check(vocabulary);
  const Family family = family_of(vocabulary);
  const ByteAlphabet alphabet;
  BpeTokenizerParts parts;
  Ids ids, words;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& spelling = vocabulary.tokens[id];
    const std::int32_t type = type_of(vocabulary, id);
    const bool special = type == kControlType || type == kUnknownType;
    const bool added = special || type == kUserDefinedType;
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
    if (split) steps.push_back({.expression = Expression(split)});
  }
  parts.splitter = Splitter(std::move(steps));
  if (family.nfc) {
    std::vector<Normalizer::Step> normalization;
    normalization.emplace_back(UnicodeForm::Nfc);
    parts.normalizer = Normalizer(std::move(normalization));
  }
  parts.bos_id = vocabulary.bos_id;
  parts.eos_id = vocabulary.eos_id;
  const bool adds_bos = vocabulary.add_bos < 0 ? family.adds_bos : vocabulary.add_bos != 0;
  if (adds_bos && vocabulary.bos_id >= 0) parts.prefix = {vocabulary.bos_id};
  if (vocabulary.add_eos == 1) parts.suffix = {vocabulary.eos_id};
  return make_bpe_tokenizer(std::move(parts));
}

}  // namespace lockstep::text
