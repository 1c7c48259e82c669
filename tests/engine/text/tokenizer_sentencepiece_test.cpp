// SentencePiece vocabularies, from tokenizer.model and as a GGUF file has them: what the reference (the sentencepiece library 0.2.3)
// answers, for every recorded string and id list, and what is refused.
#include <limits>

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

std::string long_text() {
  const json golden = read_json(tokenizer_folder("spm-bpe") / "golden.json");
  std::string text;
  while (text.size() < 50000) {
    text += "Alice was beginning to get very tired of sitting by her sister on the bank, 1865.  ";
    text += golden["cases"][text.size() % golden["cases"].size()]["text"].get<std::string>();
  }
  return text;
}

TEST(SentencePiece, OfALongTextIsTheSameFromEachFile) {
  const std::string text = long_text();
  const auto ids = tokenizer_from_sentencepiece("tokenizer.model", model_file("spm-bpe"))->encode(text, true, false);
  EXPECT_EQ(tokenizer_from_gguf(model_as_gguf("spm-bpe"))->encode(text, true, false), ids);
  // The library takes the texts apart at the same places, so this is one of them as a whole: no space between letters to cut at.
  std::string marked = text;
  for (std::size_t at = 0; (at = marked.find(' ', at)) != std::string::npos;) marked.replace(at, 1, "\xE2\x96\x81");
  EXPECT_EQ(tokenizer_from_sentencepiece("tokenizer.model", model_file("spm-bpe"))->encode(marked, true, false), ids);
}

TEST(SentencePiece, RecognisesSpecialTokensInTheTextWhereToldTo) {
  for (const bool gguf : {false, true}) {
    const auto tokenizer =
        gguf ? tokenizer_from_gguf(model_as_gguf("spm-bpe")) : tokenizer_from_sentencepiece("tokenizer.model", model_file("spm-bpe"));
    EXPECT_EQ(tokenizer->bos_id(), 1);
    EXPECT_EQ(tokenizer->eos_id(), 2);
    const Ids hi = tokenizer->encode("hi", false);
    Ids expected{1};
    expected.insert(expected.end(), hi.begin(), hi.end());
    EXPECT_EQ(tokenizer->encode("<s>hi", true), expected) << "no second BOS";
    EXPECT_EQ(tokenizer->encode("<s>hi", false), expected);
    expected.push_back(2);
    EXPECT_EQ(tokenizer->encode("hi</s>", true), expected);
    EXPECT_EQ(tokenizer->decode(expected, false), "<s> hi</s>");
    EXPECT_EQ(tokenizer->decode(expected, true), "hi");
    EXPECT_EQ(tokenizer->spelling(2), "</s>");
  }
}

TEST(SentencePiece, KeepsTheSpaceBetweenAPromptAndWhatComesAfterIt) {
  const auto tokenizer = tokenizer_from_gguf(model_as_gguf("spm-bpe"));
  const auto text_after = [&](const Ids& prompt) {
    IncrementalDetokenizer detokenizer(*tokenizer, true, prompt);
    std::string text;
    for (const TokenId id : tokenizer->encode("the cat", false)) text += detokenizer.append(id);
    return text + detokenizer.finish();
  };
  EXPECT_EQ(text_after({}), "the cat");
  EXPECT_EQ(text_after({1}), "the cat") << "BOS is no text";
  EXPECT_EQ(text_after(tokenizer->encode("See", true)), " the cat");
}

TEST(SentencePiece, TakesTokensAndFlagsOfTheFolder) {
  const auto open = [](const char* config, const char* map = "", const char* added = "") {
    return tokenizer_from_sentencepiece("dir/tokenizer.model", model_file("spm-bpe"), config, map, added);
  };
  const auto decoder = open(R"({"add_bos_token": false, "add_eos_token": true, "eos_token": "<|im_end|>", "added_tokens_decoder":
      {"2": {"content": "</s>", "special": true}, "705": {"content": "<|im_end|>", "special": true}}})");
  EXPECT_EQ(decoder->vocab_size(), 706u);
  EXPECT_EQ(decoder->eos_id(), 705);
  EXPECT_EQ(decoder->encode("<|im_end|>", true), (Ids{705, 705}));
  EXPECT_EQ(decoder->decode(Ids{705, 702}), "<|im_end|>");
  EXPECT_EQ(decoder->decode(Ids{705}, true), "");
  const auto older = open("", R"({"bos_token": {"content": "<pad>"}})", R"({"<pad>": 700})");
  EXPECT_EQ(older->bos_id(), 700);
  EXPECT_EQ(older->encode("<pad>", false), (Ids{700}));
  EXPECT_EQ(older->decode(Ids{700}), "<pad>");
}

std::string model_error(const std::string& bytes, const char* config = "", const char* added = "") {
  return error_of([&] { tokenizer_from_sentencepiece("dir/tokenizer.model", bytes, config, "", added); });
}

TEST(SentencePieceRefusal, NamesTheFileAndWhatIsWrong) {
  const std::string whole = model_file("spm-bpe");
  EXPECT_THAT(model_error(""), HasSubstr("dir/tokenizer.model: has no pieces"));
  EXPECT_THAT(model_error("hello"), HasSubstr("dir/tokenizer.model: is no SentencePiece model (a field of wire type 4)"));
  EXPECT_THAT(model_error(whole.substr(0, whole.size() - 1)), HasSubstr("ends early"));
  EXPECT_THAT(model_error("\x0B"), HasSubstr("is no SentencePiece model (a field of wire type 3)"));
  // What follows in a file overrides or adds to what was before: the trainer's model type, pieces, the normalizer's table.
  const auto with = [&](std::string_view bytes) { return model_error(whole + std::string(bytes)); };
  EXPECT_THAT(with({"\x12\x02\x18\x03", 4}), HasSubstr("a model of the type word is not supported (supported: unigram, bpe)"));
  EXPECT_THAT(with({"\x0A\x00", 2}), HasSubstr("the piece 700 is empty"));
  EXPECT_THAT(with({"\x0A\x03\x0A\x01\xFF", 5}), HasSubstr("the piece 700 is no UTF-8"));
  EXPECT_THAT(with({"\x0A\x08\x0A\x01z\x15\x00\x00\xC0\x7F", 10}), HasSubstr("the piece 700 has a score that is not finite"));
  EXPECT_THAT(with({"\x0A\x05\x0A\x01z\x18\x09", 7}), HasSubstr("the piece 700 has an unknown type"));
  EXPECT_THAT(with({"\x0A\x05\x0A\x01z\x18\x06", 7}), HasSubstr("the piece 700 is of the type byte, but not spelled <0x..>"));
  EXPECT_THAT(with({"\x1A\x03\x12\x01\x01", 5}), HasSubstr("the table of characters ends early"));
  EXPECT_THAT(with({"\x1A\x0C\x12\x0A\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00", 14}),
              HasSubstr("the table of characters leads outside of itself"));
  // A root that says it is a value is left by its distance nonetheless.
  const std::string units = std::string({'\0', '\0', '\xFF', '\xFA'}) + std::string(1020, '\0');
  const std::string table = std::string({'\0', '\x04', '\0', '\0'}) + units + std::string(1, '\0');
  EXPECT_THAT(with("\x1A\x88\x08\x12\x85\x08" + table), HasSubstr("the table of characters leads outside of itself"));
  // A table that a reader of 32 bits would find where one of 64 sees another field.
  EXPECT_THAT(with({"\x9A\x80\x80\x80\x10\x03\x12\x01\x01", 9}), HasSubstr("a field of a number of more than 32 bits"));
  EXPECT_THAT(with({"\x0A\x03\x0A\x01"
                    "a",
                    5}),
              HasSubstr("dir/tokenizer.model: libsentencepiece refuses it"));
  // The Darts library, inside of libsentencepiece, throws what is no error of ours.
  EXPECT_THAT(model_error(model_file("spm-unigram") + std::string("\x0A\x03\x0A\x01\0", 5)),
              HasSubstr("dir/tokenizer.model: libsentencepiece refuses it: "));
}

TEST(SentencePieceRefusal, NamesTheFileBesideTheModel) {
  const std::string whole = model_file("spm-bpe");
  EXPECT_THAT(model_error(whole, R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
              HasSubstr("dir/tokenizer_config.json: /added_tokens_decoder: the id \"x\" is no number below"));
  EXPECT_THAT(model_error(whole, R"({"added_tokens_decoder": {"5": {"content": "a"}}})"),
              HasSubstr("the id 5 of \"a\" is already that of \"<0x02>\""));
  EXPECT_THAT(model_error(whole, "", R"({"<pad>": 99999999})"),
              HasSubstr("dir/added_tokens.json: /<pad>: the id 99999999 is out of range"));
}

GgufVocabulary small_vocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.source = "m.gguf";
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "a", "b", "\xE2\x96\x81", "ab", "ba", "<u>"};
  vocabulary.types = {2, 3, 1, 1, 1, 1, 1, 4};
  vocabulary.scores = {0, 0, -9, -9, -9, -1, -1, 0};
  vocabulary.bos_id = 1;
  return vocabulary;
}

TEST(SentencePieceGguf, MergesTheBestScoreFirstAndOfEqualOnesTheLeftmost) {
  const auto encode = [](const GgufVocabulary& vocabulary, const char* text) {
    return tokenizer_from_gguf(vocabulary)->encode(text, true);
  };
  GgufVocabulary vocabulary = small_vocabulary();
  EXPECT_EQ(encode(vocabulary, "aba"), (Ids{1, 4, 5, 2}));
  EXPECT_EQ(encode(vocabulary, "bab"), (Ids{1, 4, 6, 3}));
  vocabulary.scores[6] = -0.5f;
  EXPECT_EQ(encode(vocabulary, "aba"), (Ids{1, 4, 2, 6}));
  EXPECT_EQ(encode(vocabulary, "a<u>\xC3\xA9zb"), (Ids{1, 4, 2, 7, 4, 0, 3})) << "neighbours that are unknown are one";
  vocabulary.add_space_prefix = 0;
  vocabulary.add_bos = 0;
  EXPECT_EQ(encode(vocabulary, "aba"), (Ids{2, 6}));
  EXPECT_EQ(tokenizer_from_gguf(vocabulary)->decode(Ids{4, 2, 0, 1}), " a \xE2\x81\x87 <s>");
}

TEST(SentencePieceGguf, RefusesScoresByName) {
  GgufVocabulary vocabulary = small_vocabulary();
  vocabulary.scores[3] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(error_of([&] { tokenizer_from_gguf(vocabulary); }), HasSubstr("m.gguf: tokenizer.ggml.scores, element 3: is not finite"));
  vocabulary.scores.pop_back();
  EXPECT_THAT(error_of([&] { tokenizer_from_gguf(vocabulary); }),
              HasSubstr("tokenizer.ggml.scores has 7 elements, tokenizer.ggml.tokens 8"));
}

}  // namespace
}  // namespace lockstep::text
