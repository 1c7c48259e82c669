// Which parts of the logits are asked for, and that the answer is that of the whole row.
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
using testing::HistoryModel;
using testing::kVocab;
using testing::ScriptModel;

TEST(Coordinator, TopKOneIsGreedyAlsoWithTies) {
  class Ties : public HistoryModel {
   public:
    Ties() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      for (std::size_t id = 0; id < row.size(); ++id) row[id] = id % 31 == tokens.size() % 31 ? 9.0f : 1.0f;  // three or four equal tops
      return row;
    }
  };
  Ties model;
  Request request;
  request.prompt = {1, 2};
  request.sampling.ignore_eos = true;
  request.sampling.temperature = 0.0f;
  Request top_k = request;
  top_k.id = 1;
  top_k.sampling.temperature = 1.5f;
  top_k.sampling.top_k = 1;
  Request with_row = top_k;  // the same by way of the whole row
  with_row.id = 2;
  with_row.sampling.logprobs = 0;
  const Answers answers = answers_of(default_options(), model, {request, top_k, with_row});
  std::vector<TokenId> lowest;
  for (TokenId length = 2; length < 18; ++length) lowest.push_back(length);
  for (RequestId id = 0; id < 3; ++id) EXPECT_EQ(answers.at(id).choices[0].tokens, lowest) << id;
}

TEST(Coordinator, OnlyRowsThatNeedMoreThanTheTopAreSelectedFrom) {
  HistoryModel model(64, 16, kVocab);
  Coordinator coordinator(default_options(), model, nullptr);
  std::vector<Request> requests(4);
  for (RequestId id = 0; id < 4; ++id) {
    requests[id].id = id;
    requests[id].prompt = {1, 2, 3};
    requests[id].sampling.temperature = 0.0f;
  }
  requests[1].sampling.temperature = 0.7f;
  requests[2].sampling.logprobs = 0;
  requests[3].sampling.repetition_penalty = 1.1f;
  for (const Request& request : requests) coordinator.submit(request, {});
  coordinator.step();
  EXPECT_THAT(model.last_plan().wanted,
              ::testing::ElementsAre(RowWants::kTop, RowWants::kSelection, RowWants::kSelection, RowWants::kSelection));
  EXPECT_THAT(model.last_plan().batch.logit_rows, ::testing::ElementsAre(2u, 5u, 8u, 11u));
  EXPECT_EQ(coordinator.counters().selected_rows, 3u);
}

/// What changes no logit at this token needs no selection, and what looks at every token needs the row at once.
TEST(Coordinator, AsksForNoMoreThanItNeeds) {
  HistoryModel model(64, 16, kVocab);
  Coordinator coordinator(default_options(), model, nullptr);
  std::vector<Request> requests(3);
  for (RequestId id = 0; id < 3; ++id) {
    requests[id].id = id;
    requests[id].prompt = {1, 2, 3};
    requests[id].sampling.temperature = 0.0f;
  }
  requests[0].sampling.presence_penalty = 1.0f;  // nothing was generated yet
  requests[1].sampling.temperature = 1.0f;
  requests[1].sampling.typical_p = 0.5f;
  requests[2].sampling.temperature = 1.0f;
  requests[2].sampling.top_k = 2000;
  for (const Request& request : requests) coordinator.submit(request, {});
  coordinator.step();
  EXPECT_THAT(model.last_plan().wanted, ::testing::ElementsAre(RowWants::kTop, RowWants::kLogits, RowWants::kLogits));
}

/// A wide distribution over more tokens than are asked for: most draws fall behind the candidates at first.
TEST(Coordinator, RowsWhoseCandidatesAreNotEnoughAreFetchedAndGiveTheTokenOfTheWholeRow) {
  constexpr std::size_t kWide = 3000;
  CoordinatorOptions options = default_options();
  options.vocab_size = kWide;
  HistoryModel model(64, 16, kWide);
  Request request;
  request.id = 1;
  request.prompt = {1, 2, 3};
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 5;
  request.sampling.max_tokens = 40;
  request.sampling.logprobs = 2;
  Coordinator coordinator(options, model, nullptr);
  Completion completion;
  coordinator.submit(request, [&](Completion&& done) { completion = std::move(done); });
  while (coordinator.step()) {
  }
  EXPECT_GE(model.num_fetched(), 3u);
  EXPECT_LT(model.num_fetched(), 40u);  // three times more are asked for, then the rows at once
  EXPECT_EQ(coordinator.counters().fetched_rows, model.num_fetched());
  EXPECT_EQ(coordinator.counters().steps, 40u);
  const Choice& choice = completion.choices.at(0);
  std::vector<TokenId> tokens = request.prompt;
  Sampler sampler;
  for (std::size_t i = 0; i < choice.tokens.size(); ++i) {
    SamplingContext context;
    context.prompt = request.prompt;
    context.position = tokens.size();
    const Sample expected = sampler.sample(model.logits(tokens), request.sampling, context);
    ASSERT_EQ(choice.tokens[i], expected.token) << i;
    EXPECT_EQ(choice.logprobs[i].logprob, expected.logprob);
    EXPECT_EQ(choice.logprobs[i].top, expected.top);
    tokens.push_back(expected.token);
  }
}

TEST(Coordinator, NothingEndsAnAnswerBeforeMinTokens) {
  FakeTokenizer tokenizer({"a", "b", "c", "d"});
  CoordinatorOptions options = default_options();
  options.vocab_size = 4;
  options.eos_ids = {3};
  options.tokenizer = &tokenizer;
  ScriptModel model({3, 1, 2, 1, 3, 3, 3, 3}, 4);
  Request request;
  request.prompt = {0};
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 8;
  request.sampling.stop = {"b"};
  request.sampling.min_tokens = 3;
  const Answers answers = answers_of(options, model, {request});
  // EOS is masked, and the lowest id of what ties comes instead; the first "b" is passed over, the second one ends it.
  EXPECT_THAT(answers.at(0).choices[0].tokens, ::testing::ElementsAre(0, 1, 2, 1));
  EXPECT_EQ(answers.at(0).choices[0].text, "abc");
  request.sampling.stop = {};
  request.sampling.min_tokens = 6;
  EXPECT_THAT(answers_of(options, model, {request}).at(0).choices[0].tokens, ::testing::ElementsAre(0, 1, 2, 1, 0, 0, 3));
}

}  // namespace
}  // namespace lockstep::engine
