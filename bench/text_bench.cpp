// Tokenizers on one core: bytes of text a second, and texts that a careless encoder takes quadratic time for.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/text/tokenizer.h"

using namespace lockstep::text;

namespace {

// Lewis Carroll, Alice's Adventures in Wonderland, 1865.
constexpr std::string_view kProse =
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped "
    "into the book her sister was reading, but it had no pictures or conversations in it, “and what is the use of a book,” thought Alice "
    "“without pictures or conversations?”\n\nSo she was considering in her own mind (as well as she could, for the hot day made her feel "
    "very "
    "sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, "
    "when "
    "suddenly a White Rabbit with pink eyes ran close by her.\n\nThere was nothing so very remarkable in that; nor did Alice think it so "
    "very "
    "much out of the way to hear the Rabbit say to itself, “Oh dear! Oh dear! I shall be late!” (when she thought it over afterwards, it "
    "occurred to her that she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually "
    "took "
    "a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind "
    "that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she "
    "ran across the field after it, and fortunately was just in time to see it pop down a large rabbit-hole under the hedge.\n\n";
constexpr std::size_t kMegabyte = 1000000;

std::string prose() {
  std::string text;
  while (text.size() < kMegabyte) text += kProse;
  return text;
}

std::string without_spaces() {
  std::string text;
  while (text.size() < kMegabyte) {
    for (const char byte : kProse)
      if (byte != ' ' && byte != '\n') text += byte;
  }
  return text;
}

std::filesystem::path data(const char* name) { return std::filesystem::path(LOCKSTEP_TEST_DATA) / "tokenizers" / name; }

/// tokenizer.json of a folder, or its tokenizer.model where `name` ends in one.
std::unique_ptr<Tokenizer> open(const char* name) {
  const auto path = data(name);
  if (path.filename() != "tokenizer.model") return tokenizer_from_folder(path);
  std::ifstream file(path, std::ios::binary);
  return tokenizer_from_sentencepiece(path.string(), std::string(std::istreambuf_iterator<char>(file), {}));
}

void encode(benchmark::State& state, const char* name, const std::string& text) {
  const auto tokenizer = open(name);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->encode(text, true));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}

void decode(benchmark::State& state, const char* name, const std::string& text) {
  const auto tokenizer = open(name);
  const auto ids = tokenizer->encode(text, true);
  for (auto _ : state) {
    IncrementalDetokenizer detokenizer(*tokenizer);
    for (const TokenId id : ids) benchmark::DoNotOptimize(detokenizer.append(id));
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}

const bool registered = [] {
  for (const char* name : {"smollm2", "llama3", "qwen2", "spm-bpe", "spm-bpe/tokenizer.model", "spm-unigram/tokenizer.model"}) {
    const auto add = [&](const char* what, const std::string& text) {
      benchmark::RegisterBenchmark((std::string(what) + "/" + name).c_str(), [=](benchmark::State& state) {
        encode(state, name, text);
      })->Unit(benchmark::kMillisecond);
    };
    add("encode_prose", prose());
    add("encode_5000_a", std::string(5000, 'a'));
    add("encode_megabyte_of_a", std::string(kMegabyte, 'a'));
    add("encode_megabyte_without_space", without_spaces());
    benchmark::RegisterBenchmark((std::string("stream_prose/") + name).c_str(), [=](benchmark::State& state) {
      decode(state, name, prose());
    })->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
