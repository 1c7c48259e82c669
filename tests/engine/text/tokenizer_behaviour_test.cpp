#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using Ids = std::vector<TokenId>;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr TokenId kBos = 700;  // of the llama3 vocabulary
constexpr TokenId kEndOfTurn = 704;

std::string json_of(const std::string& name) { return read_text(tokenizer_folder(name) / "tokenizer.json"); }

Ids with_front(TokenId first, Ids ids) {
  ids.insert(ids.begin(), first);
  return ids;
}

TEST(TokenizerBos, IsAddedToRawTextAndNeverTwice) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("llama3"));
  const Ids plain = tokenizer->encode("Hello", false);
  const Ids expected = with_front(kBos, plain);
  EXPECT_EQ(tokenizer->encode("Hello", true), expected);
  EXPECT_EQ(tokenizer->encode("<|begin_of_text|>Hello", true), expected);
  EXPECT_EQ(tokenizer->encode("<|begin_of_text|>Hello", false), expected) << "as a chat template writes it";
  EXPECT_EQ(tokenizer->encode("", true), Ids{kBos});
  EXPECT_EQ(tokenizer->encode("<|begin_of_text|>", true), Ids{kBos});
}

TEST(TokenizerBos, OfATextThatSpellsTwoKeepsBoth) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("llama3"));
  EXPECT_THAT(tokenizer->encode("<|begin_of_text|><|begin_of_text|>", true), ElementsAre(kBos, kBos));
}

TEST(TokenizerBos, IsAddedInFrontOfItsSpellingWhereSpecialTokensAreJustText) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("llama3"));
  const Ids ids = tokenizer->encode("<|begin_of_text|>", true, false);
  EXPECT_EQ(ids, with_front(kBos, tokenizer->encode("<|begin_of_text|>", false, false)));
  EXPECT_GT(ids.size(), 5u);
}

TEST(TokenizerBos, OfGgufFollowsTheFileAndElseTheFamily) {
  GgufVocabulary vocabulary = as_gguf("llama3", "llama-bpe");
  vocabulary.bos_id = kBos;
  vocabulary.eos_id = kEndOfTurn;
  EXPECT_EQ(tokenizer_from_gguf(vocabulary)->encode("", true), Ids{kBos});
  vocabulary.add_bos = 0;
  EXPECT_THAT(tokenizer_from_gguf(vocabulary)->encode("", true), IsEmpty());
  vocabulary.add_bos = 1;
  vocabulary.add_eos = 1;
  EXPECT_THAT(tokenizer_from_gguf(vocabulary)->encode("", true), ElementsAre(kBos, kEndOfTurn));
  EXPECT_THAT(tokenizer_from_gguf(vocabulary)->encode("<|begin_of_text|>", true), ElementsAre(kBos, kEndOfTurn));
  vocabulary.pre = "smollm";
  vocabulary.add_bos = vocabulary.add_eos = -1;
  EXPECT_THAT(tokenizer_from_gguf(vocabulary)->encode("", true), IsEmpty());
}

TEST(TokenizerConfig, AddsBosAndEosOnlyWherePostProcessorAddsNothing) {
  const std::string added =
      R"({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": true, "add_eos_token": true})";
  EXPECT_THAT(tokenizer_from_json("tokenizer.json", json_of("qwen2"), added)->encode("", true), ElementsAre(701, 702));
  const std::string named = R"({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})";
  EXPECT_THAT(tokenizer_from_json("tokenizer.json", json_of("qwen2"), named)->encode("", true), IsEmpty());
  const std::string refused = R"({"bos_token": "<|begin_of_text|>", "add_bos_token": false})";
  EXPECT_EQ(tokenizer_from_json("tokenizer.json", json_of("llama3"), refused)->encode("", true), Ids{kBos});
}

TEST(TokenizerConfig, NamesBosAndEosBeforeTheSpecialTokensMapDoes) {
  const auto tokenizer = tokenizer_from_json("tokenizer.json", json_of("qwen2"), R"({"bos_token": null, "eos_token": "<|im_end|>"})",
                                             R"({"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"})");
  EXPECT_EQ(tokenizer->bos_id(), 701);
  EXPECT_EQ(tokenizer->eos_id(), 702);
  EXPECT_EQ(tokenizer->spelling(tokenizer->eos_id()), "<|im_end|>");
  const auto without = tokenizer_from_json("tokenizer.json", json_of("qwen2"));
  EXPECT_EQ(without->bos_id(), -1);
  EXPECT_EQ(without->eos_id(), -1);
  EXPECT_EQ(without->spelling(without->bos_id()), "");
}

TEST(TokenizerEncode, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("qwen2"));
  EXPECT_EQ(tokenizer->encode("a\xFF\xE2\x82z", false), tokenizer->encode("a\xEF\xBF\xBD\xEF\xBF\xBDz", false));
  EXPECT_EQ(tokenizer->encode("\xED\xA0\x80", false), tokenizer->encode("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", false));
  EXPECT_EQ(tokenizer->encode("\xF0\x9F\x98", false), tokenizer->encode("\xEF\xBF\xBD", false));
}

TEST(TokenizerEncode, LeavesOutBytesThatTheVocabularyLacks) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("smollm2"));
  EXPECT_THAT(tokenizer->encode("\x04\x06\x13", false), IsEmpty());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\x04z", false)), "az");
}

double seconds_of(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)).size(), text.size());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(TokenizerEncode, TakesNoQuadraticTimeForALongTextWithoutBreaks) {
  constexpr std::size_t kSize = 1 << 18;
  constexpr double kMostSeconds = 10;  // a twentieth of a second where nothing else runs; far more if it were quadratic
  std::string letters, alternating;
  unsigned state = 1;
  for (std::size_t i = 0; i < kSize; ++i) {
    state = state * 1664525 + 1013904223;
    letters += static_cast<char>('a' + (state >> 24) % 26);
    alternating += i % 2 ? '\t' : ' ';
  }
  for (const char* name : {"smollm2", "llama3", "qwen2"}) {
    const auto tokenizer = tokenizer_from_folder(tokenizer_folder(name));
    for (const std::string& text : {std::string(5000, 'a'), std::string(kSize, 'a'), std::string(kSize, ' '), std::string(kSize, '\n'),
                                    std::string(kSize, '!'), std::string(kSize, '<'), std::string(kSize, '7'), letters, alternating}) {
      EXPECT_LT(seconds_of(*tokenizer, text), kMostSeconds) << name << ": " << text.substr(0, 4) << "...";
    }
  }
}

TEST(TokenizerEncode, GivesTheSameToThreadsThatShareOneTokenizer) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("llama3"));
  const std::string text = "It's 12345 o'clock,  said \xE4\xB8\xAD\xE6\x96\x87 <|eot_id|>\n\n" + std::string(100, 'x');
  const Ids expected = tokenizer->encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (int& count : same) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer->encode(text, true) == expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(same, testing::Each(200));
}

TEST(TokenizerIds, OutsideTheVocabularyStandForNothing) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("llama3"));
  for (const TokenId id : {-1, 705, 1 << 30}) {
    EXPECT_EQ(tokenizer->bytes_of(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
  }
  EXPECT_EQ(tokenizer->decode(Ids{-5, 39, 100000}), "H");
  EXPECT_EQ(tokenizer->id_of("no such token"), -1);
  EXPECT_EQ(tokenizer->id_of("<|eot_id|>"), kEndOfTurn);
  EXPECT_EQ(tokenizer->bytes_of(kEndOfTurn, false), "");
  EXPECT_TRUE(tokenizer->is_special(kEndOfTurn));
}

TEST(Detokenizer, HoldsBackOnlyWhatMayBecomeACharacter) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("bytes-only"));
  const Ids euro = tokenizer->encode("\xE2\x82\xAC", false);
  ASSERT_EQ(euro.size(), 3u);
  IncrementalDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.append(euro[0]), "");
  EXPECT_EQ(detokenizer.append(euro[1]), "");
  EXPECT_EQ(detokenizer.append(euro[2]), "\xE2\x82\xAC");
  EXPECT_EQ(detokenizer.append(euro[1]), "\xEF\xBF\xBD") << "a continuation without a start is hopeless at once";
  EXPECT_EQ(detokenizer.append(euro[0]), "");
  EXPECT_EQ(detokenizer.append(euro[0]), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.append(tokenizer->eos_id()), "") << "special tokens are skipped";
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

}  // namespace
}  // namespace lockstep::text
