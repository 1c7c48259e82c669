#pragma once

#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/runtime/coordinator.h"
#include "tests/engine/runtime/fakes.h"

/// Requests, and how the tests of the coordinator have them answered.
namespace lockstep::engine::testing {

inline constexpr std::size_t kVocab = 97;
inline constexpr TokenId kEos = 5;

inline CoordinatorOptions default_options() {
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

inline void run_to_end(Coordinator& coordinator) {
  for (int step = 0; coordinator.step(); ++step) ASSERT_LT(step, 1'000'000);
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
}

inline Answers answers_of(const CoordinatorOptions& options, StepRunner& runner, const std::vector<Request>& requests) {
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

inline void expect_same_logprobs(const std::vector<TokenLogprob>& expected, const std::vector<TokenLogprob>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t at = 0; at < expected.size(); ++at) {
    EXPECT_EQ(expected[at].token, actual[at].token);
    EXPECT_EQ(expected[at].logprob, actual[at].logprob);
    EXPECT_EQ(expected[at].top, actual[at].top);
    EXPECT_EQ(expected[at].is_greedy, actual[at].is_greedy);
  }
}

inline void expect_same(const Answers& expected, const Answers& actual) {
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
inline std::vector<Request> mixed_requests(std::size_t count) {
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

inline Request beam_request(RequestId id, std::uint32_t num_beams, EarlyStopping early_stopping, float length_penalty) {
  Request request;
  request.id = id;
  for (TokenId token = 0; token < 3 + static_cast<TokenId>(id) * 5; ++token) request.prompt.push_back(token);
  request.sampling.n = num_beams;
  request.sampling.max_tokens = 12;
  request.sampling.stop_token_ids = {7, 11, 60, 61, 62, 63, 64, 65, 66, 67, 68};
  request.sampling.beams = BeamParams{num_beams, length_penalty, early_stopping};
  return request;
}

/// What an answer becomes when the model wants these tokens.
inline Choice scripted(std::vector<TokenId> script, const SamplingParams& params, const text::Tokenizer* tokenizer = nullptr) {
  ScriptModel model(std::move(script), kVocab);
  CoordinatorOptions options = default_options();
  options.tokenizer = tokenizer;
  Request request;
  request.prompt = {1};
  request.sampling = params;
  request.sampling.temperature = 0.0f;
  return answers_of(options, model, {request}).at(0).choices.at(0);
}

}  // namespace lockstep::engine::testing
