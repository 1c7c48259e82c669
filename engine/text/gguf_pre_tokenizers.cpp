#include "engine/text/gguf_pre_tokenizers.h"

#include "engine/text/splitter.h"

namespace lockstep::text {

namespace {

// The expressions are those of the families' tokenizer.json files.
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr const char* kDeepSeekHan = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

constexpr std::array<PreTokenizerFamily, 16> kFamilies{{
    {.names = "default gpt-2 phi-2 mpt jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert", .splits = {kGpt2Split}},
    {.names = "olmo", .splits = {kGpt2Split}, .nfc = true},
    {.names = "smollm starcoder refact codeshell exaone minerva-7b mellum2", .splits = {kDigit, kGpt2Split}},
    {.names = "command-r", .splits = {kDigit, kGpt2Split}, .nfc = true},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .splits = {kLlama3},
     .whole_words_first = true,
     .adds_bos = true},
    {.names = "smaug-bpe dbrx glm4 chatglm-bpe", .splits = {kLlama3}},
    {.names = "qwen2 deepseek-r1-qwen kormo megrez stablelm2", .splits = {kQwen2}, .nfc = true},
    {.names = "hunyuan solar-open grok-2", .splits = {kQwen2}},
    {.names = "qwen35", .splits = {kQwen35}, .nfc = true},
    {.names = "gpt-4o llama4 kanana2 minimax-m2", .splits = {kGpt4o}},
    {.names = "tekken", .splits = {kTekken}, .whole_words_first = true, .adds_bos = true},
    {.names = "bloom poro-chat gpt3-finnish", .splits = {kBloom}},
    {.names = "viking", .splits = {kBloom, kDigit}},
    {.names = "deepseek-v3 hunyuan-dense", .splits = {kThreeDigits, kDeepSeekHan, kDeepSeek3}},
    {.names = "seed-coder", .splits = {kSeedCoder}},
    {.names = "bailingmoe bailingmoe2 llada-moe", .splits = {kBailing}},
}};

}  // namespace

const PreTokenizerFamily* find_pre_tokenizer(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return nullptr;
  const std::string word = " " + std::string(name) + " ";
  for (const PreTokenizerFamily& family : kFamilies) {
    if ((" " + std::string(family.names) + " ").find(word) != std::string::npos) return &family;
  }
  return nullptr;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const PreTokenizerFamily& family : kFamilies) names += (names.empty() ? "" : " ") + std::string(family.names);
  for (std::size_t space = 0; (space = names.find(' ', space)) != std::string::npos; space += 2) names.insert(space, ",");
  return names;
}

}  // namespace lockstep::text
