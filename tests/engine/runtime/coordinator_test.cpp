// That answers do not depend on the schedule, and how requests come and go.
#include "engine/runtime/coordinator.h"

#include <array>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/runtime/coordinator_run.h"

namespace lockstep::engine {
namespace {

using testing::Answers;
using testing::answers_of;
using testing::beam_request;
using testing::default_options;
using testing::expect_same;
using testing::HistoryModel;
using testing::kVocab;
using testing::mixed_requests;
using testing::run_to_end;

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
