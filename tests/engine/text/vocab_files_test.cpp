// Folders with vocab.json and merges.txt in place of a tokenizer.json.
#include "engine/text/vocab_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/text/tokenizer_test_data.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;

VocabFiles small_files() {
  return {.folder = "dir", .vocab = R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3, "Ġ": 4})", .merges = "#version: 0.2\na b\n"};
}

TEST(VocabFiles, GiveTheTokensOfTheTokenizerJsonThatIsMadeOfThem) {
  const json reference = read_json(tokenizer_folder("gpt2") / "tokenizer.json"),
             golden = read_json(tokenizer_folder("gpt2") / "golden.json");
  json vocabulary = reference["model"]["vocab"];
  for (const json& token : reference["added_tokens"]) vocabulary[token["content"].get<std::string>()] = token["id"];
  std::string merges = "#version: 0.2\n";
  for (const json& merge : reference["model"]["merges"])
    merges += merge.is_array() ? merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n" : merge.get<std::string>() + "\n";
  const test::TemporaryFolder folder;
  folder.write("vocab.json", vocabulary.dump());
  folder.write("merges.txt", merges);
  const auto tokenizer = tokenizer_from_folder(folder.path());
  std::size_t compared = 0;
  for (const json& each : golden["cases"]) {
    const auto text = each["text"].get<std::string>();
    const auto ids = each["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer->encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), each["decoded"].get<std::string>()) << text;
    ++compared;
  }
  EXPECT_GT(compared, 100u);
  EXPECT_TRUE(tokenizer->is_special(tokenizer->id_of("<|endoftext|>")));
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->id_of("<|endoftext|>"));
}

TEST(VocabFiles, SpecialTokensAreThoseThatTheConfigurationNames) {
  VocabFiles files = small_files();
  EXPECT_EQ(tokenizer_from_vocab_files(files)->encode("ab<|endoftext|>", true), (std::vector<TokenId>{2, 3})) << "nothing is put around";
  files.config = R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true, "add_prefix_space": true, "eos_token": "b",
                     "bos_token": {"content": "<s>"}, "unk_token": "b", "added_tokens_decoder": {"5": {"content": "<s>"}}})";
  const auto tokenizer = tokenizer_from_vocab_files(files);
  EXPECT_EQ(tokenizer->bos_id(), 5);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->encode("a", true), (std::vector<TokenId>{5, 4, 0})) << "BOS and a space in front";
  EXPECT_TRUE(tokenizer->is_special(5) && tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(3));
  files.config.clear();
  files.special_tokens_map = R"({"eos_token": "b", "additional_special_tokens": ["a"]})";
  files.added_tokens = R"({"<x>": 6})";
  EXPECT_TRUE(tokenizer_from_vocab_files(files)->is_special(0));
  EXPECT_EQ(tokenizer_from_vocab_files(files)->encode("<x>", false), (std::vector<TokenId>{6}));
}

TEST(VocabFiles, MergesMayHaveWindowsLineEndsAndNoVersion) {
  VocabFiles files = small_files();
  files.merges = "a b\r\n\r\n";
  EXPECT_EQ(tokenizer_from_vocab_files(files)->encode("ab", false), (std::vector<TokenId>{2}));
  files.merges.clear();
  EXPECT_EQ(tokenizer_from_vocab_files(files)->encode("ab", false), (std::vector<TokenId>{0, 1}));
}

TEST(VocabFiles, WhatIsWrongIsNamedWithFileAndPlace) {
  struct Case {
    std::string VocabFiles::*file;
    std::string text;
    std::string message;
  };
  for (const Case& each : {
           Case{&VocabFiles::vocab, "", "dir/vocab.json: "},
           Case{&VocabFiles::vocab, "[1]", "dir/vocab.json: "},
           Case{&VocabFiles::vocab, R"({"a": 0, "b": 1)", "dir/vocab.json"},
           Case{&VocabFiles::vocab, R"({"a": 0, "b": 0, "ab": 2})", "dir/vocab.json: /b: the id 0 has another token, too"},
           Case{&VocabFiles::vocab, R"({"a": 0, "b": 1, "ab": 2147483647})", "dir/vocab.json: /ab: the id 2147483647 is out of range"},
           Case{&VocabFiles::vocab, R"({"a": 0, "b": -1, "ab": 2})", "dir/vocab.json: /b: the id -1 is out of range"},
           Case{&VocabFiles::vocab, R"({"a": 0, "b": "x", "ab": 2})", "dir/vocab.json: /b: must be an integer"},
           Case{&VocabFiles::merges, "a b\nab", R"(dir/merges.txt: line 2: "ab" is not two tokens)"},
           Case{&VocabFiles::merges, "a b c", R"(dir/merges.txt: line 1: "a b c" is not two tokens)"},
           Case{&VocabFiles::merges, "#version\na  b", "dir/merges.txt: line 2: "},
           Case{&VocabFiles::merges, "a b\nb a", R"(dir/merges.txt: line 2: the token "ba" is not in vocab.json)"},
           Case{&VocabFiles::merges, "a c", R"(dir/merges.txt: line 1: the token "c" is not in vocab.json)"},
           Case{&VocabFiles::config, R"({"tokenizer_class": "Qwen2Tokenizer"})",
                R"(dir/tokenizer_config.json: /tokenizer_class: "Qwen2Tokenizer")"},
           Case{&VocabFiles::config, R"({"bos_token": "<s>"})",
                R"(dir/tokenizer_config.json: /bos_token: the token "<s>" is not in vocab.json)"},
           Case{&VocabFiles::config, R"({"added_tokens_decoder": {"x": {"content": "y"}}})", R"(the id "x" is no number below)"},
           Case{&VocabFiles::config, R"({"added_tokens_decoder": {"9": {"content": "a"}}})", R"(the token "a" has the id 0 in vocab.json)"},
           Case{&VocabFiles::added_tokens, R"({"<x>": 99999999})", "dir/added_tokens.json: /<x>: the id 99999999 is out of range"},
           Case{&VocabFiles::special_tokens_map, R"({"eos_token": 7})", "dir/special_tokens_map.json: /eos_token"},
       }) {
    VocabFiles files = small_files();
    files.*each.file = each.text;
    EXPECT_THAT(error_of([&] { tokenizer_from_vocab_files(files); }), HasSubstr(each.message)) << each.text;
  }
}

TEST(VocabFiles, AFolderWithoutOneOfThemHasNoTokenizer) {
  const test::TemporaryFolder folder;
  folder.write("vocab.json", small_files().vocab);
  EXPECT_THAT(error_of([&] { tokenizer_from_folder(folder.path()); }), HasSubstr("nor vocab.json and merges.txt"));
}

}  // namespace
}  // namespace lockstep::text
