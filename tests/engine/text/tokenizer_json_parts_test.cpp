// Every part that a tokenizer.json may be made of, on small vocabularies: what the reference (the tokenizers library 0.22.2) answers.
#include <gtest/gtest.h>

#include "engine/text/gguf_pre_tokenizers.h"
#include "engine/text/splitter.h"
#include "tests/engine/text/tokenizer_test_data.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

TEST(TokenizerJsonParts, EachEncodesDecodesAndStreamsAsInTheReference) {
  const json data = read_json(tokenizer_folder("parts.json"));
  ASSERT_EQ(data["texts"].size(), 30u);
  ASSERT_EQ(data["variants"].size(), 50u);
  for (const json& variant : data["variants"]) {
    SCOPED_TRACE(variant["name"].dump());
    json document = data["models"][variant["model"].get<std::string>()];
    document.update(variant["parts"]);
    const auto tokenizer = tokenizer_from_json("tokenizer.json", document.dump());
    for (std::size_t i = 0; i < data["texts"].size(); ++i) {
      SCOPED_TRACE(data["texts"][i].dump());
      const auto text = data["texts"][i].get<std::string>();
      const json& expected = variant["cases"].at(i);
      const auto ids = expected["ids"].get<Ids>();
      Ids with_special = expected.value("with_special", ids);
      EXPECT_EQ(tokenizer->encode(text, false), ids);
      // Where the text spells what is added before it, the reference has that twice, and we have not.
      if (!text.starts_with("<s>")) {
        EXPECT_EQ(tokenizer->encode(text, true), with_special);
      }
      EXPECT_EQ(tokenizer->decode(ids), expected["decoded"].get<std::string>());
      EXPECT_EQ(tokenizer->decode(with_special, true), expected.value("skip", expected["decoded"].get<std::string>()));
      IncrementalDetokenizer detokenizer(*tokenizer, false);
      std::string streamed;
      for (const TokenId id : ids) streamed += detokenizer.append(id);
      EXPECT_EQ(streamed + detokenizer.finish(), expected["decoded"].get<std::string>());
    }
  }
}

TEST(GgufPreTokenizers, EachFamilyCutsTextAsTheReferenceDoesWithItsExpressions) {
  const json data = read_json(tokenizer_folder("pre_tokenizers.json"));
  const auto text = data["text"].get<std::string>();
  ASSERT_EQ(data["pieces"].size(), 16u);
  for (const auto& [name, pieces] : data["pieces"].items()) {
    SCOPED_TRACE(name);
    const PreTokenizerFamily* family = find_pre_tokenizer(name);
    ASSERT_NE(family, nullptr);
    std::vector<Splitter::Step> steps;
    for (const char* split : family->splits) {
      if (split != nullptr) steps.push_back({.expression = Expression(split)});
    }
    Splitter::Scratch scratch;
    Splitter(std::move(steps)).split(text, scratch);
    EXPECT_EQ(std::vector<std::string>(scratch.words.begin(), scratch.words.end()), pieces.get<std::vector<std::string>>());
  }
}

TEST(GgufPreTokenizers, AreFoundByEachOfTheirNames) {
  EXPECT_EQ(find_pre_tokenizer("llama-bpe"), find_pre_tokenizer("pixtral"));
  EXPECT_NE(find_pre_tokenizer("gpt-2"), find_pre_tokenizer("gpt-4o"));
  for (const char* wrong : {"", "gpt", "gpt-2 phi-2", " ", "2"}) EXPECT_EQ(find_pre_tokenizer(wrong), nullptr) << wrong;
  EXPECT_TRUE(pre_tokenizer_names().starts_with("default, gpt-2, "));
}

}  // namespace
}  // namespace lockstep::text
