// No text may cost more than in proportion to its length, give or take a logarithm: held on ratios of processor time, so that a slow or
// busy machine changes nothing.
#include <algorithm>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/text/sentencepiece_model.h"
#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using nlohmann::json;

double seconds_for(const Tokenizer& tokenizer, const std::string& text) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.encode(text, true);
    const std::string decoded = tokenizer.decode(ids);
    EXPECT_GE(ids.size() + decoded.size(), 1u);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

std::string repeated(const std::string& part, std::size_t size) {
  std::string text;
  while (text.size() < size) text += part;
  return text;
}

std::unique_ptr<Tokenizer> open(const std::string& name) {
  if (name == "unigram") {
    const json data = read_json(tokenizer_folder("parts.json"));
    json document = data["models"]["unigram"];
    document["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"split", false}};
    document["decoder"] = document["pre_tokenizer"];
    return tokenizer_from_json("tokenizer.json", document.dump());
  }
  const auto folder = tokenizer_folder(name);
  if (!name.ends_with("tokenizer.model")) return tokenizer_from_folder(folder);
  return tokenizer_from_sentencepiece(folder.string(), read_text(folder));
}

class TokenizerSpeed : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerSpeed, GrowsWithTheLengthOfTheTextAndNotWithItsSquare) {
  constexpr std::size_t kSize = 20000, kTimes = 4;
  constexpr double kMostGrowth = 10.0;  // 4 in proportion, 16 with the square
  const auto tokenizer = open(GetParam());
  for (const std::string part : {"a", "ab", "aAzZ", " ", "\n", "7", "a ", ".", "\xE2\x96\x81", "\xF0\x9F\x98\x80", "e\xCC\x81", "<s",
                                 "<0x41>", "thequickbrownfoxjumpsoverthelazydog", "\xE6\xBC\xA2\xE5\xAD\x97"}) {
    const std::string small = repeated(part, kSize), large = repeated(part, kTimes * kSize);
    double growth = 1e9;
    for (int attempt = 0; attempt < 4 && growth > kMostGrowth; ++attempt) {
      const double least = 2e-3;  // below, the clock says little
      growth = std::min(growth, seconds_for(*tokenizer, large) / std::max(least, seconds_for(*tokenizer, small)));
    }
    EXPECT_LT(growth, kMostGrowth) << json(part).dump();
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerSpeed,
                         testing::Values("smollm2", "llama3", "qwen2", "spm-bpe", "unigram", "spm-bpe/tokenizer.model",
                                         "spm-unigram/tokenizer.model"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '/' || c == '.'; }, '_');
                           return name;
                         });

TEST(TokenizerSpeedOfFiveThousandLetters, IsThatOfAnyText) {
  const auto tokenizer = open("spm-bpe");
  const std::string letters(5000, 'a'), prose = repeated("Alice was beginning to get very tired of sitting. ", 5000);
  EXPECT_LT(seconds_for(*tokenizer, letters), 20 * seconds_for(*tokenizer, prose) + 5e-3);
}

}  // namespace
}  // namespace lockstep::text
