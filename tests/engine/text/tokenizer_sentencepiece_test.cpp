// SentencePiece vocabularies, from tokenizer.model and as a GGUF file has them: what the reference (the sentencepiece library 0.2.3)
// answers, for every recorded string and id list, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/sentencepiece_model.h"
#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

std::string model_file(const std::string& name) { return read_text(tokenizer_folder(name) / "tokenizer.model"); }

/// The vocabulary of a tokenizer.model as a GGUF file would have it.
GgufVocabulary model_as_gguf(const std::string& name) {
  const SentencePieceModel model = read_sentencepiece_model(name, model_file(name));
  GgufVocabulary vocabulary;
  vocabulary.source = name + ".gguf";
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  for (const auto& [spelling, score, type] : model.pieces) {
    vocabulary.tokens.push_back(spelling);
    vocabulary.scores.push_back(score);
    vocabulary.types.push_back(static_cast<std::int32_t>(type));
  }
  vocabulary.bos_id = model.bos_id;
  vocabulary.eos_id = model.eos_id;
  vocabulary.add_space_prefix = model.add_dummy_prefix ? 1 : 0;
  return vocabulary;
}

struct Source {
  const char* folder;
  bool gguf;
};

class SentencePieceGolden : public testing::TestWithParam<Source> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = GetParam().gguf ? tokenizer_from_gguf(model_as_gguf(GetParam().folder))
                                                          : tokenizer_from_sentencepiece("tokenizer.model", model_file(GetParam().folder));
  json golden_ = read_json(tokenizer_folder(GetParam().folder) / "golden.json");

  /// What the library's pieces are as text: tokens of control give none.
  void expect_text(const json& test, const std::string& decoded) const {
    const auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->decode(ids, true), decoded);
    IncrementalDetokenizer detokenizer(*tokenizer_, true);
    std::vector<std::string> pieces;
    for (const TokenId id : ids) pieces.push_back(detokenizer.append(id));
    pieces.push_back(detokenizer.finish());
    if (test.contains("stream")) {
      EXPECT_EQ(pieces, test["stream"].get<std::vector<std::string>>());
      return;
    }
    EXPECT_EQ(pieces.back(), "");
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_NE(pieces[i], "") << "token " << i;
  }
};

TEST_P(SentencePieceGolden, EveryStringEncodesDecodesAndStreamsAsInTheReference) {
  ASSERT_EQ(golden_["cases"].size(), 129u);
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<std::size_t>());
  for (const json& test : golden_["cases"]) {
    const auto text = test["text"].get<std::string>();
    SCOPED_TRACE(test["text"].dump());
    auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->encode(text, false, false), ids);
    ids.insert(ids.begin(), 1);
    EXPECT_EQ(tokenizer_->encode(text, true, false), ids);
    for (std::size_t i = 0; test.contains("tokens") && i < test["ids"].size(); ++i)
      EXPECT_EQ(tokenizer_->id_of(test["tokens"][i].get<std::string>()), test["ids"][i].get<TokenId>());
    expect_text(test, test.value("decoded", text));
  }
}

TEST_P(SentencePieceGolden, EveryIdListDecodesAndStreamsAsInTheReference) {
  ASSERT_EQ(golden_["decode_only"].size(), 8u);
  for (const json& test : golden_["decode_only"]) {
    SCOPED_TRACE(test["ids"].dump());
    expect_text(test, test["decoded"]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceGolden,
                         testing::Values(Source{"spm-bpe", false}, Source{"spm-bpe-noprefix", false}, Source{"spm-unigram", false},
                                         Source{"spm-bpe", true}, Source{"spm-bpe-noprefix", true}),
                         [](const auto& test) {
                           std::string name = test.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (test.param.gguf ? "_as_gguf" : "");
                         });

}  // namespace
}  // namespace lockstep::text
