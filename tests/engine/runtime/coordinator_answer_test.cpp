// What ends an answer, its text, and what is refused.
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/runtime/coordinator.h"
#include "tests/engine/runtime/coordinator_run.h"

namespace lockstep::engine {
namespace {

using testing::Answers;
using testing::answers_of;
using testing::default_options;
using testing::FakeTokenizer;
using ::testing::HasSubstr;
using testing::HistoryModel;
using testing::kEos;
using testing::kVocab;
using testing::scripted;

TEST(Coordinator, EndsAtEosStopTokenAndLength) {
  SamplingParams params;
  params.max_tokens = 4;
  const std::vector<TokenId> script = {10, 11, kEos, 12, 13, 14};
  Choice choice = scripted(script, params);
  EXPECT_EQ(choice.tokens, (std::vector<TokenId>{10, 11, kEos}));
  EXPECT_EQ(choice.finish_reason, FinishReason::kStop);
  params.ignore_eos = true;
  choice = scripted(script, params);
  EXPECT_EQ(choice.tokens, (std::vector<TokenId>{10, 11, kEos, 12}));
  EXPECT_EQ(choice.finish_reason, FinishReason::kLength);
  params.stop_token_ids = {99, 11};
  choice = scripted(script, params);
  EXPECT_EQ(choice.tokens, (std::vector<TokenId>{10, 11}));
  EXPECT_EQ(choice.finish_reason, FinishReason::kStop);
  params.ignore_eos = false;
  params.stop_token_ids = {};
  params.max_tokens = 3;
  EXPECT_EQ(scripted(script, params).finish_reason, FinishReason::kStop) << "an EOS that is also the last token allowed";
}

TEST(Coordinator, TheContextIsALimit) {
  HistoryModel model(8, 4, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.num_blocks = 8;
  options.scheduler.block_size = 4;
  Coordinator coordinator(options, model, nullptr);
  EXPECT_EQ(coordinator.limits().max_model_len, 32u);
  EXPECT_EQ(coordinator.limits().vocab_size, kVocab);
  options.max_model_len = 20;
  Request request;
  request.prompt.assign(18, 3);
  request.sampling.max_tokens = 100;
  request.sampling.ignore_eos = true;
  const Answers answers = answers_of(options, model, {request});
  EXPECT_EQ(answers.at(0).choices[0].tokens.size(), 2u);
  EXPECT_EQ(answers.at(0).choices[0].finish_reason, FinishReason::kLength);
}

TEST(Coordinator, WhatCanNotBeComputedIsRefused) {
  HistoryModel model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.eos_ids.resize(20);  // more than one beam of fifty has room for
  std::iota(options.eos_ids.begin(), options.eos_ids.end(), 0);
  Coordinator coordinator(options, model, nullptr);
  const auto error_of = [&](auto&& change) -> std::string {
    Request request;
    request.id = 7;
    request.prompt = {1};
    change(request);
    std::string asked;
    try {
      coordinator.check(request);
    } catch (const std::invalid_argument& error) {
      asked = error.what();
    }
    try {
      coordinator.submit(request, {});
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), asked);
    }
    return asked;
  };
  EXPECT_EQ(error_of([](Request& request) { request.prompt.clear(); }), "the prompt is empty");
  EXPECT_THAT(error_of([](Request& request) { request.prompt.resize(128, 1); }), HasSubstr("128 tokens leaves no room"));
  EXPECT_THAT(error_of([](Request& request) { request.prompt = {97}; }), HasSubstr("token 97"));
  EXPECT_THAT(error_of([](Request& request) { request.prompt = {-1}; }), HasSubstr("token -1"));
  EXPECT_THAT(error_of([](Request& request) { request.sampling.n = 0; }), HasSubstr("n is 0"));
  EXPECT_THAT(error_of([](Request& request) { request.sampling.temperature = -1.0f; }), HasSubstr("temperature"));
  EXPECT_THAT(error_of([](Request& request) { request.sampling.stop = {"x"}; }), HasSubstr("tokenizer"));
  EXPECT_THAT(error_of([](Request& request) { request.sampling.beams = BeamParams{49}; }),
              HasSubstr("49 beams, with 20 tokens that end an answer, need the 1029 best"));
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
  EXPECT_FALSE(coordinator.step());
}

TEST(Coordinator, NoTokensAskedForIsAnEmptyAnswer) {
  HistoryModel model(64, 16, kVocab);
  Request request;
  request.prompt = {1};
  request.sampling.max_tokens = 0;
  request.sampling.n = 2;
  const Answers answers = answers_of(default_options(), model, {request});
  ASSERT_EQ(answers.at(0).choices.size(), 2u);
  EXPECT_TRUE(answers.at(0).choices[1].tokens.empty());
  EXPECT_EQ(answers.at(0).choices[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(model.num_tokens(), 0u);
}

/// Tokens: 0 "<s>" special, 1 "a", 2 "b", 3 "cd", 4 "\xC3", 5 EOS, 6 "\xA9", 7 "\xE7\xB5", 8 "\x82", 9 "\n", 10 "dE", 11 "ND".
const FakeTokenizer& small_tokenizer() {
  static const FakeTokenizer tokenizer({"<s>", "a", "b", "cd", "\xC3", "</s>", "\xA9", "\xE7\xB5", "\x82", "\n", "dE", "ND"}, {0, kEos});
  return tokenizer;
}

TEST(Coordinator, TextIsWholeCharactersWithoutSpecialTokens) {
  SamplingParams params;
  params.max_tokens = 6;
  Choice choice = scripted({0, 1, 4, 6, 3, kEos}, params, &small_tokenizer());
  EXPECT_EQ(choice.text, "aécd");
  EXPECT_EQ(choice.tokens.size(), 6u);
  params.max_tokens = 2;
  EXPECT_EQ(scripted({1, 4, 6}, params, &small_tokenizer()).text, "a\xEF\xBF\xBD") << "half a character at the end";
  params.max_tokens = 6;
  params.stop_token_ids = {2};
  EXPECT_EQ(scripted({1, 2, 1}, params, &small_tokenizer()).text, "a") << "a token that ends the generation is no text";
}

TEST(Coordinator, StopStringsEndTheTextAcrossTokens) {
  SamplingParams params;
  params.max_tokens = 8;
  params.stop = {"END"};
  Choice choice = scripted({1, 10, 11, 1, 1, 1, 1, 1}, params, &small_tokenizer());
  EXPECT_EQ(choice.text, "ad");
  EXPECT_EQ(choice.tokens, (std::vector<TokenId>{1, 10, 11}));
  EXPECT_EQ(choice.finish_reason, FinishReason::kStop);

  params.stop = {"é", "終"};
  EXPECT_EQ(scripted({1, 2, 4, 6, 1, 1, 1, 1}, params, &small_tokenizer()).text, "ab") << "é in two tokens";
  EXPECT_EQ(scripted({1, 7, 8, 1, 1, 1, 1, 1}, params, &small_tokenizer()).text, "a") << "three bytes in two tokens";

  params.stop = {"b\na"};
  params.max_tokens = 3;
  choice = scripted({1, 2, 9}, params, &small_tokenizer());
  EXPECT_EQ(choice.text, "ab\n") << "what was held back belongs to the answer after all";
  EXPECT_EQ(choice.finish_reason, FinishReason::kLength);
  params.stop = {"cd"};
  EXPECT_EQ(scripted({1, 3, 9}, params, &small_tokenizer()).finish_reason, FinishReason::kStop);
}

TEST(Coordinator, LogitsThatAreNotFiniteFailThatChoiceOnly) {
  class Overflow : public HistoryModel {
   public:
    Overflow() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      if (tokens.front() == 9 && tokens.size() == 5) row[50] = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
  };
  Overflow model;
  std::vector<Request> requests(4);
  for (RequestId id = 0; id < 4; ++id) {
    requests[id].id = id;
    requests[id].prompt = {id % 2 == 0 ? 9 : 8, 1, 1};
    requests[id].sampling.temperature = id < 2 ? 0.0f : 1.0f;
    requests[id].sampling.ignore_eos = true;
  }
  const Answers answers = answers_of(default_options(), model, requests);
  for (RequestId id = 0; id < 4; ++id) {
    const Choice& choice = answers.at(id).choices[0];
    EXPECT_EQ(choice.finish_reason, id % 2 == 0 ? FinishReason::kError : FinishReason::kLength);
    EXPECT_EQ(choice.tokens.size(), id % 2 == 0 ? 2u : 16u);
    EXPECT_EQ(choice.error.empty(), id % 2 != 0);
    if (id % 2 == 0) {
      EXPECT_THAT(choice.error, HasSubstr("not finite"));
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
