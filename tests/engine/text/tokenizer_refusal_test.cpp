// What the tokenizer's files may not say, and that the error names the file and the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

struct JsonCase {
  const char* name;
  const char* pointer;  // of the value that is set
  const char* value;
  const char* message;  // a part of it
};

class TokenizerJsonRefusal : public testing::TestWithParam<JsonCase> {};

TEST_P(TokenizerJsonRefusal, NamesFileAndPlace) {
  json document = small_tokenizer();
  ASSERT_EQ(tokenizer_from_json("dir/tokenizer.json", document.dump())->encode("ab<s>", true), (std::vector<TokenId>{2, 3}));
  document[json::json_pointer(GetParam().pointer)] = json::parse(GetParam().value);
  const std::string error = error_of([&] { tokenizer_from_json("dir/tokenizer.json", document.dump()); });
  EXPECT_THAT(error, testing::StartsWith("dir/tokenizer.json: /"));
  EXPECT_THAT(error, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerJsonRefusal,
    testing::Values(
        JsonCase{"UnigramInBytes", "/model/type", R"("Unigram")", "/model/type: Unigram with a ByteLevel pre-tokenizer is not supported"},
        JsonCase{"WordPiece", "/model/type", R"("WordPiece")",
                 R"(/model/type: the model "WordPiece" is not supported (supported: BPE, Unigram))"},
        JsonCase{"ModelNoObject", "/model", "[]", "/model: must be an object, not array"},
        JsonCase{"VocabularyNoObject", "/model/vocab", R"([["a", 0]])", "/model/vocab: must be an object"},
        JsonCase{"VocabularyEmpty", "/model/vocab", "{}", "/model/vocab: is empty"},
        JsonCase{"IdNegative", "/model/vocab/a", "-1", "/model/vocab/a: the id -1 is out of range"},
        JsonCase{"IdHuge", "/model/vocab/a", "2147483647", "/model/vocab/a: the id 2147483647 is out of range"},
        JsonCase{"IdBeyond64Bits", "/model/vocab/a", "18446744073709551615", "/model/vocab/a"},
        JsonCase{"IdNoInteger", "/model/vocab/a", "0.5", "/model/vocab/a: must be an integer, not number"},
        JsonCase{"IdTwice", "/model/vocab/a", "1", R"(the id 1 of "b" is already that of "a")"},
        JsonCase{"IdOfAddedTokenTaken", "/added_tokens/0/id", "0", R"(/added_tokens/0: the id 0 of "<s>" is already that of "a")"},
        JsonCase{"AddedTokenWithAnotherId", "/added_tokens/0/content", R"("b")",
                 R"(/added_tokens/0/id: is 3, but /model/vocab gives "b" the id 1)"},
        JsonCase{"AddedTokensNoArray", "/added_tokens", "{}", "/added_tokens: must be an array"},
        JsonCase{"AddedTokenFlagNoBoolean", "/added_tokens/0/lstrip", "1", "/added_tokens/0/lstrip: must be true or false"},
        JsonCase{"MergeOfUnknownToken", "/model/merges/0", R"("a c")", R"(/model/merges/0: the token "c" is not in /model/vocab)"},
        JsonCase{"MergeIntoUnknownToken", "/model/merges/0", R"(["b", "a"])", R"(/model/merges/0: the token "ba" is not in /model/vocab)"},
        JsonCase{"MergeOfThree", "/model/merges/0", R"("a b a")", "/model/merges/0: must be two tokens"},
        JsonCase{"MergeNumber", "/model/merges/0", "7", "/model/merges/0: must be two tokens"},
        JsonCase{"UnknownTokenUnknown", "/model/unk_token", R"("?")", R"(/model/unk_token: the token "?" is not in /model/vocab)"},
        JsonCase{"Dropout", "/model/dropout", "0.1", "/model/dropout: dropout is not supported"},
        JsonCase{"Affix", "/model/end_of_word_suffix", R"("</w>")", "/model/end_of_word_suffix"},
        JsonCase{"Normalizer", "/normalizer", R"({"type": "BertNormalizer"})",
                 R"(/normalizer/type: the normalizer "BertNormalizer" is not supported)"},
        JsonCase{"TableNoBase64", "/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "a"})",
                 "/normalizer/precompiled_charsmap: is no base64"},
        JsonCase{"TableCutShort", "/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})",
                 "/normalizer/precompiled_charsmap: the table of characters ends early"},
        JsonCase{"PreTokenizer", "/pre_tokenizer", R"({"type": "BertPreTokenizer"})",
                 R"(/pre_tokenizer/type: the pre-tokenizer "BertPreTokenizer")"},
        JsonCase{"MetaspaceOfTwo", "/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})",
                 "/pre_tokenizer/replacement: must be one character"},
        JsonCase{"MetaspaceScheme", "/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})",
                 R"(/pre_tokenizer/prepend_scheme: "last" is none of always, first, never)"},
        JsonCase{"NestedPreTokenizer", "/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "X/Y"}]})",
                 R"(/pre_tokenizer/pretokenizers/1/type: the pre-tokenizer "X/Y")"},
        JsonCase{"BadExpression", "/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
                 "/pre_tokenizer/pattern: the expression is wrong near its byte 2"},
        JsonCase{"Behavior", "/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})",
                 "/pre_tokenizer/behavior: \"Odd\""},
        JsonCase{"Decoder", "/decoder", R"({"type": "WordPiece"})", R"(/decoder/type: the decoder "WordPiece" is not supported)"},
        JsonCase{"NoDecoder", "/decoder", "null", "has no decoder"},
        JsonCase{"ReplaceAfterFuse", "/decoder",
                 R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "a"}, "content": ""}]})",
                 R"(/decoder/decoders/1: "Replace" after ByteLevel or Fuse is not supported)"},
        JsonCase{"StripOfNothing", "/decoder", R"({"type": "Strip", "content": "", "start": 1, "stop": 0})", "/decoder/content: is empty"},
        JsonCase{"PostProcessor", "/post_processor", R"({"type": "Odd"})", R"(/post_processor/type: the post-processor "Odd")"},
        JsonCase{"PairOfUnknownId", "/post_processor", R"({"type": "RobertaProcessing", "cls": ["<s>", 9], "sep": ["<s>", 3]})",
                 "/post_processor: adds the id 9, which no token has"},
        JsonCase{
            "TemplateOfUnknownId", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [9]}}})",
            "/post_processor: adds the id 9, which no token has"},
        JsonCase{
            "TemplateOfUnnamedToken", "/post_processor",
            R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}], "special_tokens": {}})",
            R"(/post_processor/single/0/SpecialToken/id: "x" is not among)"}),
    [](const auto& test) { return test.param.name; });

TEST(TokenizerJsonRefusals, OfWhatIsNoJsonOrTooDeep) {
  EXPECT_THAT(error_of([] { tokenizer_from_json("t.json", "{\"model\": "); }), HasSubstr("t.json: is not valid JSON"));
  EXPECT_THAT(error_of([] { tokenizer_from_json("t.json", ""); }), HasSubstr("t.json: is not valid JSON"));
  EXPECT_THAT(error_of([] { tokenizer_from_json("t.json", "7"); }), HasSubstr("t.json: /: must be an object"));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THAT(error_of([&] { tokenizer_from_json("t.json", deep); }), HasSubstr("t.json: is nested deeper than 64 levels"));
  const std::string brackets_in_text = R"({"a": ")" + std::string(100, '[') + R"(\"["})";
  EXPECT_THAT(error_of([&] { tokenizer_from_json("t.json", brackets_in_text); }), HasSubstr("has no member \"model\""));
}

TEST(TokenizerJsonRefusals, OfConfigNameThatFile) {
  const std::string text = small_tokenizer().dump();
  EXPECT_THAT(error_of([&] { tokenizer_from_json("dir/tokenizer.json", text, R"({"bos_token": "<bos>"})"); }),
              HasSubstr("dir/tokenizer_config.json: /bos_token: the token \"<bos>\" is not in tokenizer.json"));
  EXPECT_THAT(error_of([&] { tokenizer_from_json("dir/tokenizer.json", text, R"({"add_bos_token": true})"); }),
              HasSubstr("dir/tokenizer_config.json: /add_bos_token: is set, but no such token is named"));
  EXPECT_THAT(error_of([&] { tokenizer_from_json("dir/tokenizer.json", text, "", R"({"eos_token": 7})"); }),
              HasSubstr("dir/special_tokens_map.json: /eos_token: must be a string"));
}

TEST(TokenizerFolder, WithoutATokenizerIsAnError) {
  EXPECT_THAT(error_of([] { tokenizer_from_folder(tokenizer_folder("absent")); }),
              HasSubstr("absent: has neither tokenizer.json nor tokenizer.model"));
}

TEST(TokenizerJson, MayHaveGapsBetweenIds) {
  json document = small_tokenizer();
  document["added_tokens"][0]["id"] = 1000;
  const auto tokenizer = tokenizer_from_json("t.json", document.dump());
  EXPECT_EQ(tokenizer->vocab_size(), 1001u);
  EXPECT_EQ(tokenizer->bytes_of(500), "");
  EXPECT_EQ(tokenizer->id_of(""), -1);
  EXPECT_EQ(tokenizer->bytes_of(1000), "<s>");
}

GgufVocabulary small_gguf() {
  GgufVocabulary vocabulary;
  vocabulary.source = "m.gguf";
  vocabulary.model = "gpt2";
  vocabulary.pre = "smollm";
  vocabulary.tokens = {"a", "b", "ab", "<s>"};
  vocabulary.merges = {"a b"};
  vocabulary.types = {1, 1, 1, 3};
  return vocabulary;
}

std::string gguf_error(void (*change)(GgufVocabulary&)) {
  GgufVocabulary vocabulary = small_gguf();
  change(vocabulary);
  return error_of([&] { tokenizer_from_gguf(vocabulary); });
}

TEST(TokenizerGgufRefusal, NamesTheModelAndTheExpression) {
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.model = "llama"; }),
              HasSubstr("m.gguf: tokenizer.ggml.scores is absent, which a vocabulary of kind \"llama\" needs"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.model = "bert"; }),
              HasSubstr("tokenizer.ggml.model \"bert\" (WordPiece) is not supported (supported: \"gpt2\""));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.model = ""; }), HasSubstr("tokenizer.ggml.model is absent"));
  const std::string error = gguf_error([](GgufVocabulary& v) { v.pre = "klingon"; });
  EXPECT_THAT(error, HasSubstr("tokenizer.ggml.pre \"klingon\" is not supported"));
  for (const char* known : {"smollm", "llama-bpe", "qwen2", "gpt-2", "default", "tekken", "bloom"}) EXPECT_THAT(error, HasSubstr(known));
}

TEST(TokenizerGgufRefusal, NamesTheKeyThatIsWrong) {
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.tokens.clear(); }), HasSubstr("tokenizer.ggml.tokens is absent or empty"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.types.pop_back(); }),
              HasSubstr("tokenizer.ggml.token_type has 3 elements, tokenizer.ggml.tokens 4"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.bos_id = 4; }), HasSubstr("tokenizer.ggml.bos_token_id is 4, but there are 4 tokens"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.eos_id = -7; }), HasSubstr("tokenizer.ggml.eos_token_id is -7"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.add_bos = 1; }), HasSubstr("tokenizer.ggml.add_bos_token is set, but there is no"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) {
                v.merges = {"a b", "ab"};
              }),
              HasSubstr("tokenizer.ggml.merges, element 1 (\"ab\"): not two tokens"));
  EXPECT_THAT(gguf_error([](GgufVocabulary& v) { v.merges = {"a c"}; }), HasSubstr("element 0 (\"a c\"): the right side is no token"));
}

TEST(TokenizerGguf, LeavesOutAMergeWhoseResultIsNoToken) {
  GgufVocabulary vocabulary = small_gguf();
  vocabulary.merges = {"b a", "a b"};
  EXPECT_EQ(tokenizer_from_gguf(vocabulary)->encode("bab", false), (std::vector<TokenId>{1, 2}));
}

TEST(TokenizerGguf, WithoutTypesTakesTheNamedTokensForSpecial) {
  GgufVocabulary vocabulary = small_gguf();
  vocabulary.types.clear();
  vocabulary.eos_id = 3;
  const auto tokenizer = tokenizer_from_gguf(vocabulary);
  EXPECT_TRUE(tokenizer->is_special(3));
  EXPECT_EQ(tokenizer->encode("a<s>", false), (std::vector<TokenId>{0, 3}));
}

}  // namespace
}  // namespace lockstep::text
