// What the reference (the tokenizers library) answers, for every recorded string and id list.
#include <gtest/gtest.h>

#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

std::vector<std::string> stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = false) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special);
  std::vector<std::string> pieces;
  for (const TokenId id : ids) {
    if (!skip_special || !tokenizer.is_special(id)) pieces.push_back(detokenizer.append(id));
  }
  pieces.push_back(detokenizer.finish());
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

void expect_stream(const Tokenizer& tokenizer, const json& golden, const Ids& ids) {
  const auto pieces = stream(tokenizer, ids);
  if (golden.contains("stream")) {
    EXPECT_EQ(pieces, golden["stream"].get<std::vector<std::string>>());
  } else {  // one piece a token, none empty
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_NE(pieces[i], "") << "token " << i;
    EXPECT_EQ(pieces.back(), "");
  }
  EXPECT_EQ(joined(pieces), golden["decoded"].get<std::string>());
}

/// The ids with BOS of a text that spells BOS itself: the reference adds a second one, we do not.
Ids without_second_bos(Ids ids) {
  if (ids.size() > 1 && ids[0] == ids[1]) ids.erase(ids.begin());
  return ids;
}

struct Source {
  std::string folder;
  std::string pre;  // empty: from tokenizer.json, else as a GGUF file
};

class TokenizerGolden : public testing::TestWithParam<Source> {
 protected:
  static std::unique_ptr<Tokenizer> open() {
    const Source& source = GetParam();
    if (source.pre.empty()) return tokenizer_from_folder(tokenizer_folder(source.folder));
    GgufVocabulary vocabulary = as_gguf(source.folder, source.pre);
    if (source.folder == "llama3") vocabulary.bos_id = 700;
    return tokenizer_from_gguf(std::move(vocabulary));
  }
};

TEST_P(TokenizerGolden, EveryStringEncodesDecodesAndStreamsAsInTheReference) {
  const auto tokenizer = open();
  const json golden = read_json(tokenizer_folder(GetParam().folder) / "golden.json");
  ASSERT_EQ(golden["cases"].size(), 129u);
  EXPECT_EQ(tokenizer->vocab_size(), golden["vocab_size"].get<std::size_t>());
  for (const json& test : golden["cases"]) {
    const auto text = test["text"].get<std::string>();
    SCOPED_TRACE(test["text"].dump());
    const auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text, false), ids);
    const auto with_special = test.contains("ids_with_special") ? without_second_bos(test["ids_with_special"].get<Ids>()) : ids;
    EXPECT_EQ(tokenizer->encode(text, true), with_special);
    EXPECT_EQ(tokenizer->encode(text, false, false), test.contains("ids_specials_as_text") ? test["ids_specials_as_text"].get<Ids>() : ids);
    EXPECT_EQ(tokenizer->decode(ids), test["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(ids, true), test["decoded_skip_special"].get<std::string>());
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(tokenizer->id_of(test["tokens"][i].get<std::string>()), ids[i]);
    expect_stream(*tokenizer, test, ids);
  }
}

TEST_P(TokenizerGolden, EveryIdListDecodesAndStreamsAsInTheReference) {
  const auto tokenizer = open();
  const json golden = read_json(tokenizer_folder(GetParam().folder) / "golden.json");
  ASSERT_EQ(golden["decode_only"].size(), 32u);
  for (const json& test : golden["decode_only"]) {
    SCOPED_TRACE(test["ids"].dump());
    const auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->decode(ids), test["decoded"].get<std::string>());
    expect_stream(*tokenizer, test, ids);
  }
}

INSTANTIATE_TEST_SUITE_P(Json, TokenizerGolden,
                         testing::Values(Source{"smollm2", ""}, Source{"gpt2", ""}, Source{"llama3", ""}, Source{"qwen2", ""}),
                         [](const auto& test) { return test.param.folder; });
INSTANTIATE_TEST_SUITE_P(Gguf, TokenizerGolden,
                         testing::Values(Source{"smollm2", "smollm"}, Source{"gpt2", "gpt-2"}, Source{"llama3", "llama-bpe"},
                                         Source{"qwen2", "qwen2"}),
                         [](const auto& test) { return test.param.folder; });

std::unique_ptr<Tokenizer> open_bytes_only(bool as_gguf_file) {
  if (!as_gguf_file) return tokenizer_from_folder(tokenizer_folder("bytes-only"));
  GgufVocabulary vocabulary = as_gguf("bytes-only", "gpt-2");
  vocabulary.merges = {"\xC3\xB8 \xC3\xB9"};  // as the GGUF file of this model has it: llama.cpp wants one, and its result is no token
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.add_bos = 1;
  return tokenizer_from_gguf(std::move(vocabulary));
}

class TokenizerGoldenBytesOnly : public testing::TestWithParam<bool> {};

TEST_P(TokenizerGoldenBytesOnly, AVocabularyWithoutMergesAddsBosAndStreams) {
  const auto tokenizer = open_bytes_only(GetParam());
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 257u);
  const json golden = read_json(tokenizer_folder("bytes-only") / "golden.json");
  ASSERT_FALSE(golden["cases"].empty());
  for (const json& test : golden["cases"]) {
    SCOPED_TRACE(test["text"].dump());
    EXPECT_EQ(tokenizer->encode(test["text"].get<std::string>(), true), test["ids"].get<Ids>());
    const auto generated = test["greedy"].get<Ids>();
    EXPECT_EQ(tokenizer->decode(generated, true), test["greedy_text"].get<std::string>());
    EXPECT_EQ(stream(*tokenizer, generated, true), test["stream_skip_special"].get<std::vector<std::string>>());
  }
}

INSTANTIATE_TEST_SUITE_P(JsonAndGguf, TokenizerGoldenBytesOnly, testing::Bool());

TEST(TokenizerGoldenByteFallback, EveryStringEncodesAndDecodesAsInTheReference) {
  const auto tokenizer = tokenizer_from_folder(tokenizer_folder("spm-bpe"));  // its tokenizer.json, not its tokenizer.model
  const json golden = read_json(tokenizer_folder("spm-bpe") / "golden_tokenizer_json.json");
  ASSERT_EQ(golden["cases"].size(), 129u);
  for (const json& test : golden["cases"]) {
    const auto text = test["text"].get<std::string>();
    SCOPED_TRACE(test["text"].dump());
    const auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text, false), ids);
    EXPECT_EQ(tokenizer->encode(text, true), without_second_bos(test["ids_with_special"].get<Ids>()));
    EXPECT_EQ(tokenizer->encode(text, false, false), test.contains("ids_specials_as_text") ? test["ids_specials_as_text"].get<Ids>() : ids);
    EXPECT_EQ(tokenizer->decode(ids), test["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(ids, true), test["decoded_skip_special"].get<std::string>());
    EXPECT_EQ(joined(stream(*tokenizer, ids)), test["decoded"].get<std::string>());
  }
}

}  // namespace
}  // namespace lockstep::text
