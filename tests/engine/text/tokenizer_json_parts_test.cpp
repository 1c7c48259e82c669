// Every part that a tokenizer.json may be made of, on small vocabularies: what the reference (the tokenizers library 0.22.2) answers.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::text
