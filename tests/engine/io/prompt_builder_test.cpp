#include "engine/io/prompt_builder.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/io/fakes.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;

std::vector<TokenId> ids(std::string_view text, bool bos = false) {
  std::vector<TokenId> result;
  if (bos) result.push_back(0);
  for (const char c : text) result.push_back(static_cast<unsigned char>(c) + 3);
  return result;
}

class PromptBuilder : public testing::Test {
 protected:
  FakeTokenizer tokenizer_;
  RenderChat render_ = fake_template;
  std::size_t max_model_len_ = 64;

  PreparedRequest prepare(const std::string& line, std::uint64_t line_number = 1) {
    RequestContext context;
    context.vocab_size = 261;
    const RequestLine parsed = parse_request_line(line, line_number, context);
    if (parsed.error) throw *parsed.error;
    return prepare_request(parsed.request, line_number, {tokenizer_, render_, 0, max_model_len_, 42});
  }
  void expect_refused(const std::string& line, const std::string& param, const std::string& message) {
    try {
      prepare(line);
      FAIL() << line << " is not refused";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.param(), param);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
};

TEST_F(PromptBuilder, BosComesOnceWhereverItComesFrom) {
  EXPECT_EQ(prepare(R"({"messages": [{"role": "user", "content": "x"}]})").requests[0].prompt, ids("[user]x[assistant]", true));
  EXPECT_EQ(prepare(R"({"prompt": "x"})").requests[0].prompt, ids("x", true));
  EXPECT_EQ(prepare(R"({"prompt": "<s>x"})").requests[0].prompt, ids("x", true));
  EXPECT_EQ(prepare(R"({"prompt": [5, 6]})").requests[0].prompt, (std::vector<TokenId>{5, 6}));
}

TEST_F(PromptBuilder, AnEchoIsThePromptAsItWasGiven) {
  const PreparedRequest text = prepare(R"({"prompt": ["xy", "<s>z"], "echo": true, "logprobs": 0, "max_tokens": 0})");
  ASSERT_EQ(text.echoes.size(), 2u);
  EXPECT_EQ(text.echoes[0].text, "xy");
  EXPECT_EQ(text.echoes[0].first, 0);
  EXPECT_EQ(text.echoes[1].text, "<s>z");
  EXPECT_EQ(text.requests[0].first_scored, 1u);
  EXPECT_EQ(text.requests[0].sampling.max_tokens, 0u);
  const PreparedRequest of_ids = prepare(R"({"prompt": [0, 100, 101], "echo": true, "max_tokens": 3})");
  EXPECT_EQ(of_ids.echoes.at(0).text, "ab");
  EXPECT_EQ(of_ids.requests[0].first_scored, 0u) << "no log-probabilities were asked for";
  EXPECT_EQ(of_ids.requests[0].sampling.max_tokens, 3u);
  EXPECT_TRUE(prepare(R"({"prompt": "x", "logprobs": 1})").echoes.empty());
}

TEST_F(PromptBuilder, APromptThatIsOnlyScoredMayFillTheContext) {
  const auto line = [](std::size_t count) {
    return R"({"prompt": ")" + std::string(count, 'x') + R"(", "echo": true, "logprobs": 0, "max_tokens": 0})";
  };
  EXPECT_EQ(prepare(line(64)).requests[0].prompt.size(), 65u);
  expect_refused(line(65), "prompt", "66 tokens");
}

TEST_F(PromptBuilder, ATemplateThatSpellsNoBosGetsNone) {
  render_ = [](const auto&, std::int64_t) { return "text"; };
  EXPECT_EQ(prepare(R"({"messages": [{"role": "user", "content": "x"}]})").requests[0].prompt, ids("text"));
}

TEST_F(PromptBuilder, TheTemplateSeesItsVariablesAndTheDateOfTheJob) {
  nlohmann::ordered_json seen;
  std::int64_t time = 0;
  render_ = [&](const nlohmann::ordered_json& variables, std::int64_t now) {
    seen = variables;
    time = now;
    return "x";
  };
  RequestContext context;
  context.vocab_size = 261;
  const RequestLine line =
      parse_request_line(R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"k": 1}})", 1, context);
  prepare_request(line.request, 1, {tokenizer_, render_, 1234, 64, 0});
  EXPECT_EQ(seen.at("bos_token"), "<s>");
  EXPECT_EQ(seen.at("eos_token"), "</s>");
  EXPECT_EQ(seen.at("add_generation_prompt"), true);
  EXPECT_TRUE(seen.at("tools").is_null());
  EXPECT_EQ(seen.at("k"), 1);
  EXPECT_EQ(time, 1234);
}

TEST_F(PromptBuilder, WhatTheTemplateRefusesIsThatLinesFault) {
  expect_refused(R"({"messages": [{"role": "system", "content": "x"}]})", "messages", "System role not supported");
  render_ = nullptr;
  expect_refused(R"({"messages": [{"role": "user", "content": "x"}]})", "messages", "no chat template");
}

TEST_F(PromptBuilder, APromptWithoutTokensIsRefusedUnlessBosMakesOne) {
  EXPECT_EQ(prepare(R"({"prompt": ""})").requests[0].prompt, ids("", true));
  tokenizer_ = FakeTokenizer(false);
  expect_refused(R"({"prompt": ""})", "prompt", "prompt is empty");
  expect_refused(R"({"prompt": ["a", ""]})", "prompt[1]", "prompt[1] is empty");
}

TEST_F(PromptBuilder, MaxTokensIsClippedToTheContext) {
  max_model_len_ = 16;
  const auto max_tokens = [&](const std::string& line) { return prepare(line).requests[0].sampling.max_tokens; };
  const std::string fourteen = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14";
  EXPECT_EQ(max_tokens(R"({"max_tokens": 10, "prompt": )" + fourteen + "]}"), 2u);
  EXPECT_EQ(max_tokens(R"({"max_tokens": 1, "prompt": )" + fourteen + "]}"), 1u);
  EXPECT_EQ(max_tokens(R"({"prompt": )" + fourteen + ",15]}"), 1u);
  expect_refused(R"({"prompt": )" + fourteen + ",15,16]}", "prompt", "16 tokens, which leaves no room for one more in the context of 16");
}

TEST_F(PromptBuilder, AbsentMaxTokensIsSixteenOrTheRestOfTheContext) {
  EXPECT_EQ(prepare(R"({"prompt": "x"})").requests[0].sampling.max_tokens, 16u);
  EXPECT_EQ(prepare(R"({"messages": [{"role": "user", "content": "x"}]})").requests[0].sampling.max_tokens,
            64u - ids("[user]x[assistant]", true).size());
}

TEST_F(PromptBuilder, SeedsAreTheRequestsOrMadeFromJobAndLine) {
  const auto seed = [&](const std::string& line, std::uint64_t number) { return prepare(line, number).requests[0].sampling.seed; };
  EXPECT_EQ(seed(R"({"prompt": "x", "seed": 5})", 9), 5u);
  EXPECT_EQ(seed(R"({"prompt": "x", "seed": -1})", 9), ~std::uint64_t{0});
  EXPECT_EQ(seed(R"({"prompt": "x"})", 9), line_seed(42, 9));
  EXPECT_NE(seed(R"({"prompt": "x"})", 9), seed(R"({"prompt": "x"})", 10));
  EXPECT_NE(line_seed(1, 9), line_seed(2, 9));
  EXPECT_NE(line_seed(0, 1), 0u);
  EXPECT_LT(line_seed(42, 9), std::uint64_t{1} << 53);
}

TEST_F(PromptBuilder, PromptsOfAnArrayHaveSeedsOfTheirOwn) {
  const PreparedRequest prepared = prepare(R"({"prompt": ["x", "x", "x"], "seed": 5, "n": 2})");
  ASSERT_EQ(prepared.requests.size(), 3u);
  EXPECT_EQ(prepared.num_choices(), 6u);
  EXPECT_EQ(prepared.requests[0].sampling.seed, 5u);
  EXPECT_NE(prepared.requests[1].sampling.seed, prepared.requests[2].sampling.seed);
  EXPECT_EQ(prepared.requests[1].sampling.seed, prompt_seed(5, 1));
}

// Computed by an independent program. The derivation stands in files of users: these values never change.
TEST(Seeds, AreTheSameForEver) {
  EXPECT_EQ(line_seed(0, 1), 306350170640982u);
  EXPECT_EQ(prompt_seed(5, 1), 3037792740224598u);
  EXPECT_EQ(hex_digits(stable_hash("lockstep")), "19316c0f78dfef6f");
}

}  // namespace
}  // namespace lockstep::engine
