#include "engine/runtime/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/runtime/coordinator.h"
#include "tests/engine/runtime/fakes.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

/// A queue between two threads, as the control channel is one between two processes.
class Queue : public PlanSender, public PlanReceiver {
 public:
  void send(std::span<const std::byte> plan) override {
    const std::lock_guard lock(mutex_);
    plans_.emplace_back(plan.begin(), plan.end());
    arrived_.notify_one();
  }
  void receive(std::vector<std::byte>& plan) override {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !plans_.empty(); });
    plan = std::move(plans_.front());
    plans_.pop_front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::vector<std::byte>> plans_;
};

CoordinatorOptions small_options() {
  CoordinatorOptions options;
  options.scheduler.num_blocks = 16;
  options.scheduler.max_num_batched_tokens = 10;
  options.max_model_len = 64;
  options.vocab_size = 97;
  return options;
}

TEST(Worker, RunsEveryPlanOfRankZeroUntilItStops) {
  testing::HistoryModel model_of_rank_0(16, 16, 97);
  testing::HistoryModel model_of_rank_1(16, 16, 97);
  Queue queue;
  std::uint64_t num_steps = 0;
  std::thread worker([&] { num_steps = serve(queue, model_of_rank_1); });
  Coordinator coordinator(small_options(), model_of_rank_0, &queue);
  std::size_t completed = 0;
  for (RequestId id = 0; id < 10; ++id) {
    Request request;
    request.id = id;
    request.prompt.assign(1 + 5 * id % 17, static_cast<TokenId>(id));
    request.sampling.temperature = id % 2 == 0 ? 0.0f : 1.0f;
    coordinator.submit(std::move(request), [&](Completion&&) { ++completed; });
  }
  while (coordinator.step()) {
  }
  coordinator.cancel_all();
  coordinator.stop();
  worker.join();
  EXPECT_EQ(completed, 10u);
  EXPECT_EQ(num_steps, coordinator.counters().steps);
  EXPECT_EQ(model_of_rank_1.num_tokens(), model_of_rank_0.num_tokens());
  EXPECT_EQ(model_of_rank_1.last_plan().batch.token_ids, model_of_rank_0.last_plan().batch.token_ids);
  EXPECT_THROW(coordinator.step(), std::logic_error);
}

TEST(Worker, AnAbortCarriesItsReason) {
  testing::HistoryModel model(16, 16, 97);
  Queue queue;
  Coordinator coordinator(small_options(), model, &queue);
  coordinator.abort("disk full");
  try {
    serve(queue, model);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("disk full"));
  }
}

TEST(Worker, APlanOutOfOrderIsRefused) {
  testing::HistoryModel model(16, 16, 97);
  Queue queue;
  StepPlan plan;
  plan.kind = StepKind::kStop;
  plan.sequence = 2;
  std::vector<std::byte> bytes;
  serialize(plan, bytes);
  queue.send(bytes);
  try {
    serve(queue, model);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("plan 2 arrived, but plan 1 is next"));
  }
}

}  // namespace
}  // namespace lockstep::engine
