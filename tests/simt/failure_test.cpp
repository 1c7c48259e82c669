// What fails on one GPU fails on every rank, with one clear message, within the deadline, and leaves nothing behind.

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/threads.h"
#include "tests/simt/gpu_session.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::size_t free_memory() {
  std::size_t all = 0;
  for (int gpu = 0; gpu < 2; ++gpu) {
    std::size_t free = 0, total = 0;
    cudaSetDevice(gpu);
    cudaMemGetInfo(&free, &total);
    all += free;
  }
  return all;
}

/// Opens a session on two GPUs and computes a prompt and two tokens. What each rank threw; empty: nothing.
std::vector<std::string> outcome(const test::RunSetup& setup) {
  comm::CommunicatorOptions options;
  options.deadline = std::chrono::seconds(20);
  auto communicators = comm::make_thread_communicators(setup.ranks, options);
  std::vector<std::string> errors(static_cast<std::size_t>(setup.ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    threads.emplace_back([&, rank] {
      comm::Communicator& host = *communicators[rank];
      comm::CudaRank gpu;
      try {
        gpu = setup.open_rank(host);
        engine::Session session(setup.session, *gpu.device, *gpu.communicator);
        if (rank > 0) {
          session.serve();
        } else {
          test::greedy(session, {5, 6, 7}, 3);
          session.stop();
        }
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        (gpu.communicator ? *gpu.communicator : host).abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class FailureOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    simt::reset();
    test::write_tiny_gguf(model_, device::DType::kBF16, {.num_layers = 1});
    setup_ = test::exact_setup(model_, 2);
    setup_.session.dtype.reset();
    setup_.session.kv_cache_bytes = 1u << 20;
    setup_.session.max_num_batched_tokens = 64;
    setup_ = test::on_gpus(setup_);
  }
  void TearDown() override { simt::reset(); }

  test::TemporaryFolder folder_;
  std::filesystem::path model_ = folder_.path() / "tiny.gguf";
  test::RunSetup setup_;
};

TEST_F(FailureOnGpus, AnyAllocationThatFailsIsOneClearErrorOnEveryRankAndNothingLeaks) {
  const std::size_t free = free_memory();
  ASSERT_EQ(outcome(setup_), std::vector<std::string>(2));
  const auto allocations = static_cast<int>(simt::counters().allocations);
  ASSERT_GT(allocations, 20);
  for (const char* function : {"cudaMalloc", "cudaHostAlloc"}) {
    int failed = 0;
    for (int nth = 1; nth <= allocations; nth += 1 + nth / 8) {
      simt::reset();
      simt::fail_call(function, nth);
      const std::vector<std::string> errors = outcome(setup_);
      simt::reset();
      if (errors == std::vector<std::string>(2)) continue;  // fewer calls than that
      ++failed;
      for (const std::string& error : errors) {
        EXPECT_THAT(error, HasSubstr("allocating")) << function << ' ' << nth;
        EXPECT_THAT(error, HasSubstr("out of memory")) << function << ' ' << nth;
      }
      EXPECT_EQ(free_memory(), free) << function << ' ' << nth;
    }
    EXPECT_GT(failed, 1) << function;
  }
}

TEST_F(FailureOnGpus, ARankThatLeavesInTheMiddleEndsTheOthersWithItsReason) {
  setup_.session.max_model_len = 64;
  comm::CommunicatorOptions options;
  options.deadline = std::chrono::seconds(20);
  auto communicators = comm::make_thread_communicators(2, options);
  std::string error_of_0;
  const auto run = [&](std::size_t rank) {
    comm::CudaRank gpu;
    try {
      gpu = setup_.open_rank(*communicators[rank]);
      engine::Session session(setup_.session, *gpu.device, *gpu.communicator);
      if (rank == 1) throw std::runtime_error("rank 1 has had enough");
      test::greedy(session, {5, 6, 7}, 30);
    } catch (const std::exception& error) {
      if (rank == 0) error_of_0 = error.what();
      if (gpu.communicator) gpu.communicator->abort(error.what());
    }
  };
  std::thread peer(run, 1);
  run(0);
  peer.join();
  EXPECT_THAT(error_of_0, HasSubstr("rank 1 has had enough"));
}

TEST_F(FailureOnGpus, ACacheThatDoesNotFitSaysWhatDoes) {
  simt::config().memory_bytes = std::size_t{48} << 20;
  setup_.session.kv_cache_bytes.reset();
  setup_.session.max_model_len = 512;
  setup_.session.max_num_seqs = 4;
  EXPECT_EQ(outcome(setup_), std::vector<std::string>(2));
  simt::config().memory_bytes = std::size_t{17} << 20;
  for (const std::string& error : outcome(setup_))
    EXPECT_THAT(error, testing::AnyOf(HasSubstr("KV cache"), HasSubstr("activations"), HasSubstr("GPU memory")));
}

TEST_F(FailureOnGpus, TheCacheLeavesExpertsTheMemoryThatTheirFirstStepTakes) {
  setup_.session.model = std::filesystem::path(LOCKSTEP_TEST_DATA) / "models" / "qwen2-moe";
  setup_.ranks = 1;
  setup_.session.kv_cache_bytes.reset();
  setup_.session.max_num_batched_tokens = 16384;
  setup_.session.max_num_seqs = 4096;  // whose cache would need more memory than there is
  simt::config().memory_bytes = std::size_t{128} << 20;
  const auto free = [] {
    std::size_t bytes = 0, total = 0;
    cudaMemGetInfo(&bytes, &total);
    return bytes;
  };
  test::with_session(setup_, [&](engine::Session& session) {
    EXPECT_LT(session.kv_tokens(), 4096u * 256u);
    const std::size_t before = free();
    test::greedy(session, {5, 6, 7}, 3);
    EXPECT_GT(before - free(), std::size_t{40} << 20) << "more than the tenth that --gpu-memory-utilization leaves";
  });
}

TEST_F(FailureOnGpus, MoreRanksThanGpusAreRefusedUnlessSharingIsAllowed) {
  simt::config().device_count = 2;
  setup_.ranks = 3;
  for (const std::string& error : outcome(setup_)) EXPECT_THAT(error, HasSubstr("3 ranks on this machine, but only 2 GPUs"));
  simt::config().device_count = 1;
  setup_.ranks = 2;
  for (const std::string& error : outcome(setup_)) EXPECT_THAT(error, HasSubstr("GPU"));
}

}  // namespace
}  // namespace lockstep
