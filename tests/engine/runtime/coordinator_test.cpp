#include "engine/runtime/coordinator.h"

#include <array>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/runtime/fakes.h"

namespace lockstep::engine {
namespace {

using testing::FakeTokenizer;
using ::testing::HasSubstr;
using testing::HistoryModel;
using testing::ScriptModel;

constexpr std::size_t kVocab = 97;
constexpr TokenId kEos = 5;

CoordinatorOptions default_options() {
  CoordinatorOptions options;
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.num_blocks = 64;
  options.scheduler.block_size = 16;
  options.max_model_len = 128;
  options.vocab_size = kVocab;
  options.eos_ids = {kEos};
  return options;
}

using Answers = std::map<RequestId, Completion>;

void run_to_end(Coordinator& coordinator) {
  for (int step = 0; coordinator.step(); ++step) ASSERT_LT(step, 1'000'000);
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
}

Answers answers_of(const CoordinatorOptions& options, StepRunner& runner, const std::vector<Request>& requests) {
  Coordinator coordinator(options, runner, nullptr);
  Answers answers;
  for (const Request& request : requests) {
    coordinator.submit(request, [&](Completion&& completion) {
      const RequestId id = completion.id;
      EXPECT_TRUE(answers.emplace(id, std::move(completion)).second);
    });
  }
  run_to_end(coordinator);
  EXPECT_EQ(answers.size(), requests.size());
  return answers;
}

void expect_same_logprobs(const std::vector<TokenLogprob>& expected, const std::vector<TokenLogprob>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t at = 0; at < expected.size(); ++at) {
    EXPECT_EQ(expected[at].token, actual[at].token);
    EXPECT_EQ(expected[at].logprob, actual[at].logprob);
    EXPECT_EQ(expected[at].top, actual[at].top);
    EXPECT_EQ(expected[at].is_greedy, actual[at].is_greedy);
  }
}

void expect_same(const Answers& expected, const Answers& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [id, completion] : expected) {
    const Completion& other = actual.at(id);
    ASSERT_EQ(completion.choices.size(), other.choices.size());
    for (std::size_t i = 0; i < completion.choices.size(); ++i) {
      const Choice& a = completion.choices[i];
      const Choice& b = other.choices[i];
      EXPECT_EQ(a.index, b.index);
      ASSERT_EQ(a.tokens, b.tokens) << "request " << id << " choice " << i;
      EXPECT_EQ(a.text, b.text);
      EXPECT_EQ(a.finish_reason, b.finish_reason);
      EXPECT_EQ(a.error, b.error);
      EXPECT_EQ(a.beam_score, b.beam_score);
      expect_same_logprobs(a.logprobs, b.logprobs);
    }
    expect_same_logprobs(completion.prompt_logprobs, other.prompt_logprobs);
  }
}

/// Requests of every kind: greedy, sampled, penalised, with log-probabilities, several choices, scored prompts.
std::vector<Request> mixed_requests(std::size_t count) {
  std::mt19937 random(11);
  std::vector<Request> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = requests[i];
    request.id = 100 + i;
    request.prompt.resize(1 + random() % 40);
    for (TokenId& id : request.prompt) id = static_cast<TokenId>(random() % kVocab);
    if (i % 3 == 0) {  // some begin alike
      for (std::size_t at = 0; at < std::min<std::size_t>(request.prompt.size(), 5 + i); ++at)
        request.prompt[at] = static_cast<TokenId>(at);
    }
    SamplingParams& params = request.sampling;
    params.seed = random();
    params.max_tokens = 1 + random() % 30;
    params.temperature = i % 3 == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(i % 4);
    params.top_k = i % 4 == 1 ? 20 : 0;
    params.top_p = i % 5 == 2 ? 0.8f : 1.0f;
    params.min_p = i % 7 == 3 ? 0.05f : 0.0f;
    params.repetition_penalty = i % 6 == 3 ? 1.2f : 1.0f;
    params.frequency_penalty = i % 6 == 4 ? 0.5f : 0.0f;
    params.logprobs = i % 4 == 0 ? 3 : -1;
    params.ignore_eos = i % 2 == 0;
    params.n = i % 5 == 0 ? 3 : 1;
    if (i % 3 == 1) request.first_scored = 1 + random() % request.prompt.size();
    if (i % 6 == 1) params.max_tokens = 0;
  }
  return requests;
}

TEST(Coordinator, AnswersDoNotDependOnHowTheWorkIsScheduled) {
  const std::vector<Request> requests = mixed_requests(30);
  HistoryModel reference_model(64, 16, kVocab);
  const Answers expected = answers_of(default_options(), reference_model, requests);
  std::uint64_t variants = 0;
  for (const std::size_t chunk : {0u, 1u, 7u}) {
    for (const std::size_t max_num_seqs : {1u, 3u, 16u}) {
      for (const std::size_t num_blocks : {32u, 200u}) {
        for (const std::size_t preempt_every : {0u, 1u, 3u}) {
          CoordinatorOptions options = default_options();
          options.scheduler.prefill_chunk = chunk;
          options.scheduler.max_num_seqs = max_num_seqs;
          options.scheduler.max_num_batched_tokens = 5 + 9 * (variants % 4);
          options.scheduler.block_size = 4;
          options.scheduler.num_blocks = num_blocks;
          options.scheduler.preempt_every = preempt_every;
          options.scheduler.prefix_caching = variants % 2 == 1;
          options.scheduler.max_logit_rows = std::array{0, 1, 2, 17}[variants % 4];
          HistoryModel model(num_blocks, 4, kVocab);
          SCOPED_TRACE(::testing::Message() << "chunk " << chunk << ", sequences " << max_num_seqs << ", blocks " << num_blocks
                                            << ", preempt every " << preempt_every << ", prefix caching "
                                            << options.scheduler.prefix_caching);
          expect_same(expected, answers_of(options, model, requests));
          EXPECT_LE(model.largest_step(), options.scheduler.max_num_batched_tokens);
          if (options.scheduler.max_logit_rows != 0) {
            EXPECT_LE(model.most_logit_rows(), options.scheduler.max_logit_rows);
          }
          ++variants;
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Coordinator, AnswersDoNotDependOnTheOrderOrCompanyOfRequests) {
  std::vector<Request> requests = mixed_requests(20);
  HistoryModel model(64, 16, kVocab);
  const Answers expected = answers_of(default_options(), model, requests);
  std::vector<Request> reversed(requests.rbegin(), requests.rend());
  expect_same(expected, answers_of(default_options(), model, reversed));
  Answers alone;
  for (const Request& request : requests) alone.merge(answers_of(default_options(), model, {request}));
  expect_same(expected, alone);
}

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

Request beam_request(RequestId id, std::uint32_t num_beams, EarlyStopping early_stopping, float length_penalty) {
  Request request;
  request.id = id;
  for (TokenId token = 0; token < 3 + static_cast<TokenId>(id) * 5; ++token) request.prompt.push_back(token);
  request.sampling.n = num_beams;
  request.sampling.max_tokens = 12;
  request.sampling.stop_token_ids = {7, 11, 60, 61, 62, 63, 64, 65, 66, 67, 68};
  request.sampling.beams = BeamParams{num_beams, length_penalty, early_stopping};
  return request;
}

TEST(Coordinator, BeamSearchesDoNotDependOnHowTheWorkIsScheduledNorBlockEachOther) {
  std::vector<Request> requests = {beam_request(1, 4, EarlyStopping::kNo, 1.0f), beam_request(2, 3, EarlyStopping::kYes, 2.0f),
                                   beam_request(3, 5, EarlyStopping::kNever, 0.5f), beam_request(4, 1, EarlyStopping::kNo, 0.0f)};
  for (const Request& other : mixed_requests(6)) requests.push_back(other);
  HistoryModel reference_model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.max_num_seqs = 32;
  const Answers expected = answers_of(options, reference_model, requests);
  std::size_t at_end_token = 0;
  for (RequestId id = 1; id <= 4; ++id) {
    const std::vector<Choice>& choices = expected.at(id).choices;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i].error, "");
      EXPECT_EQ(choices[i].index, i);
      if (i > 0) {
        EXPECT_GE(choices[i - 1].beam_score, choices[i].beam_score);
      }
      for (std::size_t other = 0; other < i; ++other) EXPECT_NE(choices[i].tokens, choices[other].tokens);
      at_end_token += choices[i].finish_reason == FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GT(at_end_token, 3u);
  std::size_t variants = 0;
  for (const std::size_t max_num_seqs : {1u, 2u, 3u, 6u}) {  // fewer than there are beams, too
    for (const std::size_t num_blocks : {16u, 100u}) {
      for (const std::size_t preempt_every : {0u, 2u}) {
        options = default_options();
        options.scheduler.max_num_seqs = max_num_seqs;
        options.scheduler.block_size = 4;
        options.scheduler.num_blocks = num_blocks;
        options.scheduler.preempt_every = preempt_every;
        options.scheduler.prefix_caching = ++variants % 3 != 0;
        HistoryModel model(num_blocks, 4, kVocab);
        SCOPED_TRACE(::testing::Message() << max_num_seqs << " sequences, " << num_blocks << " blocks, preempt every " << preempt_every);
        expect_same(expected, answers_of(options, model, requests));
        if (HasFailure()) return;
      }
    }
  }
}

/// Prompts of several attention spans, some of which begin alike, and beams.
std::vector<Request> long_requests() {
  std::vector<Request> requests = mixed_requests(14);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<TokenId> beginning(60 + 40 * (i % 5));
    for (std::size_t at = 0; at < beginning.size(); ++at) beginning[at] = static_cast<TokenId>((at * 7 + i % 2) % kVocab);
    requests[i].prompt.insert(requests[i].prompt.begin(), beginning.begin(), beginning.end());
    requests[i].sampling.max_tokens *= 3;
    if (requests[i].first_scored != 0) requests[i].first_scored += beginning.size();
  }
  Request beams = beam_request(1, 4, EarlyStopping::kNo, 1.0f);
  beams.prompt.insert(beams.prompt.end(), requests[3].prompt.begin(), requests[3].prompt.end());
  requests.push_back(beams);
  return requests;
}

TEST(Coordinator, AnswersDoNotDependOnBlocksThatSlidingLayersGiveBack) {
  const std::vector<Request> requests = long_requests();
  CoordinatorOptions options = default_options();
  options.max_model_len = 500;
  HistoryModel reference_model(512, 16, kVocab);
  options.scheduler.num_blocks = 512;
  const Answers expected = answers_of(options, reference_model, requests);
  std::size_t variants = 0;
  std::uint64_t cached = 0, not_cached = 0;
  for (const BlockTables tables : {BlockTables{1, 1}, BlockTables{2, 3}, BlockTables{1, 6}}) {
    for (const std::size_t window : {1u, 40u, 100u}) {
      for (const std::size_t stretches : {25u, 200u}) {
        for (const std::size_t preempt_every : {0u, 3u}) {
          options.scheduler.prefill_chunk = std::array{0, 17, 5}[variants % 3];
          options.scheduler.max_num_seqs = std::array{2, 8}[variants / 2 % 2];
          options.scheduler.block_size = 16;
          options.scheduler.num_blocks = stretches * tables.all();
          options.scheduler.tables = tables;
          options.scheduler.window = window;
          options.scheduler.preempt_every = preempt_every;
          options.scheduler.prefix_caching = ++variants % 5 != 0;
          HistoryModel model(options.scheduler.num_blocks, 16, kVocab, tables, window);
          SCOPED_TRACE(::testing::Message() << tables.whole << " and " << tables.sliding << " tables, window " << window << ", "
                                            << stretches << " stretches, preempt every " << preempt_every << ", prefix caching "
                                            << options.scheduler.prefix_caching);
          expect_same(expected, answers_of(options, model, requests));
          if (preempt_every == 0 && stretches == 200) (options.scheduler.prefix_caching ? cached : not_cached) = model.num_tokens();
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_LT(cached, not_cached) << "beginnings are found though they have holes";
}

TEST(Coordinator, ABeamIsGreedySearchWhereThereIsOne) {
  HistoryModel model(64, 16, kVocab);
  Request beam = beam_request(1, 1, EarlyStopping::kYes, 1.0f);
  Request greedy = beam;
  greedy.id = 2;
  greedy.sampling.beams.reset();
  greedy.sampling.temperature = 0.0f;
  const Answers answers = answers_of(default_options(), model, {beam, greedy});
  EXPECT_EQ(answers.at(1).choices[0].tokens, answers.at(2).choices[0].tokens);
}

TEST(Coordinator, ABeamSearchThatCanNotBeIsRefusedAndOneWithoutFiniteLogitsFailsAlone) {
  class Overflow : public HistoryModel {
   public:
    Overflow() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      if (tokens.size() == 16) row[50] = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
  };
  Overflow model;
  const Answers answers =
      answers_of(default_options(), model, {beam_request(2, 3, EarlyStopping::kNo, 1.0f), beam_request(3, 3, EarlyStopping::kNo, 1.0f)});
  for (const Choice& choice : answers.at(2).choices) EXPECT_EQ(choice.error, non_finite_error());
  for (const Choice& choice : answers.at(3).choices) EXPECT_EQ(choice.error, "");
  Coordinator coordinator(default_options(), model, nullptr);
  Request request = beam_request(1, 100, EarlyStopping::kNo, 1.0f);
  EXPECT_THROW(coordinator.submit(request, {}), std::invalid_argument);
  request = beam_request(1, 2, EarlyStopping::kNo, 1.0f);
  request.sampling.n = 3;
  EXPECT_THROW(coordinator.submit(request, {}), std::invalid_argument);
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
}

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

TEST(Coordinator, ChoicesDifferAndAreReproducible) {
  HistoryModel model(64, 16, kVocab);
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.n = 3;
  request.sampling.seed = 42;
  request.sampling.ignore_eos = true;
  const Answers first = answers_of(default_options(), model, {request});
  const auto& choices = first.at(0).choices;
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_NE(choices[0].tokens, choices[1].tokens);
  EXPECT_NE(choices[1].tokens, choices[2].tokens);
  expect_same(first, answers_of(default_options(), model, {request}));
  request.sampling.n = 1;
  EXPECT_EQ(answers_of(default_options(), model, {request}).at(0).choices[0].tokens, choices[0].tokens) << "choice 0 does not depend on n";
  request.sampling.seed = 43;
  EXPECT_NE(answers_of(default_options(), model, {request}).at(0).choices[0].tokens, choices[0].tokens);
}

Choice scripted(std::vector<TokenId> script, const SamplingParams& params, const text::Tokenizer* tokenizer = nullptr) {
  ScriptModel model(std::move(script), kVocab);
  CoordinatorOptions options = default_options();
  options.tokenizer = tokenizer;
  Request request;
  request.prompt = {1};
  request.sampling = params;
  request.sampling.temperature = 0.0f;
  return answers_of(options, model, {request}).at(0).choices.at(0);
}

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

TEST(Coordinator, CallbacksMaySubmitAndCancellingIsSilent) {
  HistoryModel model(64, 16, kVocab);
  Coordinator coordinator(default_options(), model, nullptr);
  int completed = 0;
  std::function<void(Completion &&)> chain = [&](Completion&&) {
    if (++completed == 5) return;
    Request next;
    next.id = static_cast<RequestId>(completed);
    next.prompt = {1, 2};
    coordinator.submit(next, chain);
  };
  chain({});
  run_to_end(coordinator);
  EXPECT_EQ(completed, 5);
  const Engine::Counters counters = coordinator.counters();
  EXPECT_EQ(counters.finished_requests, 4u);
  EXPECT_EQ(counters.prompt_tokens, 8u);
  EXPECT_GT(counters.generated_tokens, 4u);
  EXPECT_GT(counters.steps, 4u);

  Request request;
  request.prompt = {1, 2};
  coordinator.submit(request, [](Completion&&) { FAIL(); });
  coordinator.step();
  coordinator.cancel_all();
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
  EXPECT_FALSE(coordinator.step());
  bool done = false;
  coordinator.submit(request, [&](Completion&&) { done = true; });
  run_to_end(coordinator);
  EXPECT_TRUE(done) << "the engine is of use after a cancellation";
}

TEST(Coordinator, AFailedStepIsTheEnd) {
  class Broken : public StepRunner {
   public:
    void run(const StepPlan&, StepResult&) override { throw std::runtime_error("a peer is gone"); }
  };
  Broken runner;
  Coordinator coordinator(default_options(), runner, nullptr);
  Request request;
  request.prompt = {1};
  coordinator.submit(request, [](Completion&&) { FAIL(); });
  EXPECT_THROW(coordinator.step(), std::runtime_error);
  EXPECT_THROW(coordinator.step(), std::logic_error);
}

TEST(Coordinator, RunsAPlanOfTheCallersWhenIdle) {
  HistoryModel model(64, 16, kVocab);
  Coordinator coordinator(default_options(), model, nullptr);
  StepPlan plan;
  plan.batch.token_ids = {4, 8, 15};
  plan.batch.positions = {0, 1, 2};
  plan.batch.sequences = {{0, 3, 0, 0}};
  plan.batch.block_tables = {0};
  plan.batch.logit_rows = {0, 1, 2};
  plan.wanted.assign(3, RowWants::kLogits);
  StepResult result;
  coordinator.run_when_idle(plan, result);
  ASSERT_EQ(result.logits.size(), 3u);
  EXPECT_THAT(result.logits[1], ::testing::ElementsAreArray(model.logits({4, 8})));
  EXPECT_EQ(plan.sequence, 1u);
  coordinator.run_when_idle(plan, result);
  EXPECT_EQ(plan.sequence, 2u);
  Request request;
  request.prompt = {1};
  coordinator.submit(request, {});
  EXPECT_THROW(coordinator.run_when_idle(plan, result), std::logic_error);
  run_to_end(coordinator);
}

TEST(Coordinator, APlanOfTheCallersMayOverwriteWhatThePrefixCacheHeld) {
  HistoryModel model(64, 4, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.block_size = 4;
  options.scheduler.prefix_caching = true;
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Answers expected = answers_of(options, model, {request});
  Coordinator coordinator(options, model, nullptr);
  coordinator.submit(request, {});
  run_to_end(coordinator);
  StepPlan plan;
  for (std::uint32_t block = 0; block < 64; ++block) plan.batch.block_tables.push_back(block);
  plan.batch.token_ids.assign(256, 30);
  plan.batch.positions.resize(256);
  std::iota(plan.batch.positions.begin(), plan.batch.positions.end(), 0);
  plan.batch.sequences = {{0, 256, 0, 0}};
  StepResult result;
  coordinator.run_when_idle(plan, result);
  Answers again;
  coordinator.submit(request, [&](Completion&& done) { again[done.id] = std::move(done); });
  run_to_end(coordinator);
  expect_same(expected, again);
}

TEST(Coordinator, CountsPreemptionsAndRecomputedTokens) {
  HistoryModel model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.preempt_every = 4;
  Coordinator coordinator(options, model, nullptr);
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.ignore_eos = true;
  coordinator.submit(request, {});
  run_to_end(coordinator);
  EXPECT_GT(coordinator.counters().preemptions, 2u);
  EXPECT_GT(coordinator.counters().prompt_tokens, 3u);
  EXPECT_EQ(coordinator.counters().generated_tokens, 16u);
}

/// Resident bytes of this process.
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(Coordinator, ThousandsOfRequestsLeaveMemoryFlat) {
  HistoryModel model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.tokenizer = nullptr;
  Coordinator coordinator(options, model, nullptr);
  std::vector<Request> requests = mixed_requests(50);
  std::size_t submitted = 0;
  std::size_t completed = 0;
  const auto run = [&](std::size_t count) {
    const std::size_t end = submitted + count;
    while (completed < end) {
      while (submitted < end && coordinator.num_in_flight() < 12) {
        Request request = requests[submitted % requests.size()];
        request.id = submitted++;
        request.sampling.max_tokens = 4;
        coordinator.submit(std::move(request), [&](Completion&&) { ++completed; });
      }
      coordinator.step();
    }
  };
  run(500);
  [[maybe_unused]] const std::size_t before = resident_bytes();
  run(5000);
  EXPECT_EQ(completed, 5500u);
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident_bytes(), before + (std::size_t{1} << 20));
#endif
}

}  // namespace
}  // namespace lockstep::engine
