// Prompts that are scored.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "engine/runtime/coordinator.h"
#include "tests/engine/runtime/coordinator_run.h"

namespace lockstep::engine {
namespace {

using testing::Answers;
using testing::answers_of;
using testing::default_options;
using testing::expect_same_logprobs;
using testing::HistoryModel;
using testing::kVocab;
using testing::run_to_end;

/// The log-probabilities of a prompt, from the whole rows that the model gives.
std::vector<TokenLogprob> expected_scores(const HistoryModel& model, const Request& request) {
  std::vector<TokenLogprob> scores;
  Sampler sampler;
  for (std::size_t at = request.first_scored; at < request.prompt.size(); ++at) {
    const std::vector<float> row = model.logits({request.prompt.begin(), request.prompt.begin() + static_cast<std::ptrdiff_t>(at)});
    Sample sample = sampler.score(row, request.prompt[at], std::max(request.sampling.logprobs, 0));
    const bool is_greedy = std::max_element(row.begin(), row.end()) - row.begin() == request.prompt[at];
    scores.push_back({sample.token, sample.logprob, std::move(sample.top), is_greedy});
  }
  return scores;
}

TEST(Coordinator, ScoresThePromptFromTheTokenThatIsAskedFor) {
  HistoryModel model(64, 16, kVocab);
  Request request;
  for (TokenId id = 0; id < 40; ++id) request.prompt.push_back(id * 7 % 90);
  // Somewhere the likeliest token comes.
  const std::vector<float> row = model.logits({request.prompt.begin(), request.prompt.begin() + 20});
  request.prompt[20] = static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
  std::vector<Request> requests;
  for (const std::size_t first : {1u, 2u, 19u, 39u}) {
    for (const std::uint32_t max_tokens : {0u, 3u}) {
      request.id = requests.size();
      request.first_scored = first;
      request.sampling.max_tokens = max_tokens;
      request.sampling.logprobs = static_cast<std::int32_t>(first % 3) - 1;
      requests.push_back(request);
    }
  }
  const Answers answers = answers_of(default_options(), model, requests);
  for (const Request& asked : requests) {
    SCOPED_TRACE(asked.id);
    const Completion& completion = answers.at(asked.id);
    expect_same_logprobs(expected_scores(model, asked), completion.prompt_logprobs);
    EXPECT_EQ(completion.choices[0].tokens.size(), asked.sampling.max_tokens);
    EXPECT_EQ(completion.choices[0].finish_reason, FinishReason::kLength);
    if (asked.first_scored <= 20) {
      EXPECT_TRUE(completion.prompt_logprobs[20 - asked.first_scored].is_greedy);
    }
  }
}

TEST(Coordinator, APromptThatIsOnlyScoredMayFillTheContext) {
  HistoryModel model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.max_model_len = 10;
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // of the last one nothing is computed
  request.first_scored = 1;
  request.sampling.max_tokens = 0;
  EXPECT_EQ(answers_of(options, model, {request}).at(0).prompt_logprobs.size(), 10u);
  EXPECT_EQ(model.num_tokens(), 10u);
  request.prompt.push_back(12);
  EXPECT_THROW(answers_of(options, model, {request}), std::invalid_argument);
  request.prompt = {1};
  EXPECT_TRUE(answers_of(options, model, {request}).at(0).prompt_logprobs.empty());
}

/// A logit above the lift that a scored token gets: the row itself is looked at.
TEST(Coordinator, ScoresAreRightAlsoWhereLogitsAreHuge) {
  class Huge : public HistoryModel {
   public:
    Huge() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      row[50] = 3e38f;
      return row;
    }
  };
  Huge model;
  Request request;
  request.prompt = {1, 50, 2};
  request.first_scored = 1;
  request.sampling.max_tokens = 0;
  const Answers answers = answers_of(default_options(), model, {request});
  expect_same_logprobs(expected_scores(model, request), answers.at(0).prompt_logprobs);
  EXPECT_EQ(answers.at(0).prompt_logprobs[0].logprob, 0.0f);
  EXPECT_EQ(model.num_fetched(), 1u);
}

TEST(Coordinator, TheCachedBeginningOfAPromptIsOnlyUsedBeforeWhatIsScored) {
  HistoryModel model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.prefix_caching = true;
  Coordinator coordinator(options, model, nullptr);
  Request request;
  for (TokenId id = 0; id < 60; ++id) request.prompt.push_back(id);
  request.sampling.max_tokens = 0;
  std::uint64_t computed = 0;
  for (const auto& [first, num_tokens] : {std::pair{1u, 59u}, {59u, 11u}, {33u, 27u}, {32u, 43u}, {1u, 59u}}) {
    request.first_scored = first;
    std::vector<TokenLogprob> scores;
    coordinator.submit(request, [&](Completion&& completion) { scores = std::move(completion.prompt_logprobs); });
    run_to_end(coordinator);
    expect_same_logprobs(expected_scores(model, request), scores);
    EXPECT_EQ(model.num_tokens() - std::exchange(computed, model.num_tokens()), num_tokens) << first;
  }
}

TEST(Coordinator, APromptWhoseScoresAreNotFiniteFailsAlone) {
  class Overflow : public HistoryModel {
   public:
    Overflow() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      if (tokens.front() == 9 && tokens.size() == 3) row[50] = std::numeric_limits<float>::infinity();
      return row;
    }
  };
  Overflow model;
  std::vector<Request> requests(3);
  for (RequestId id = 0; id < 3; ++id) {
    requests[id].id = id;
    requests[id].prompt = {id == 1 ? 8 : 9, 1, 2, 3, 4, 5};
    requests[id].first_scored = 1;
    requests[id].sampling.max_tokens = id == 2 ? 4 : 0;
  }
  const Answers answers = answers_of(default_options(), model, requests);
  for (RequestId id = 0; id < 3; ++id) {
    const Choice& choice = answers.at(id).choices[0];
    EXPECT_EQ(choice.finish_reason, id == 1 ? FinishReason::kLength : FinishReason::kError);
    EXPECT_EQ(choice.error, id == 1 ? "" : non_finite_error());
    EXPECT_TRUE(choice.tokens.empty());
  }
}

}  // namespace
}  // namespace lockstep::engine
