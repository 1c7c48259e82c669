#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simt/simt.h"
#include "tests/simt/comm_ranks.h"
#include "tests/simt/recording.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

using Clock = std::chrono::steady_clock;

const std::vector<std::string> all_transports = {"one_shot", "two_shot", "nccl_gather", "nccl_slices"};

/// Streams are lazy: the kernels of a rank run while it waits, as on a GPU, not within the call.
class GpuFailure : public testing::Test {
 protected:
  void SetUp() override {
    reset_emulator();
    simt::config().stream_order = simt::StreamOrder::kLazy;
  }
  void TearDown() override { simt::reset(); }
};

std::size_t used_memory() {
  std::size_t used = 0;
  for (int device = 0; device < simt::config().device_count; ++device) {
    std::size_t left = 0, all = 0;
    cudaSetDevice(device);
    cudaMemGetInfo(&left, &all);
    used += all - left;
  }
  return used;
}

/// What the last rank does where the others sum: nothing for a while, or it gives up.
using LastRank = std::function<void(GpuRank&)>;

/// All but the last rank call all_reduce, at once or from a recording, and wait; what they then say, and after how long.
struct Scene {
  std::string transport;
  bool recorded = false;
  milliseconds deadline{30000};
  bool goes_well_first = true;
};

Outcomes play(const Scene& scene, const LastRank& last) {
  const TableFile table("0 " + scene.transport + "\n");
  CudaCommunicatorOptions options = gpu_options(table.path());
  options.deadline = scene.deadline;
  const conformance::SharedTree tree(9, 3);
  return run_gpus(
      3, [&](int) { return options; }, conformance::small_options(),
      [&](GpuRank& gpu) {
        const device::cuda::DeviceMemory memory(4 * 3000 * sizeof(float), "the test");
        gpu.communicator.set_position({7, "n06 linear"});
        const auto sum = [&] { gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 3000); };
        if (scene.goes_well_first) {
          sum();
          gpu.finish();
        }
        gpu.communicator.barrier();
        std::optional<Recording> recording;
        if (scene.recorded) recording.emplace(gpu.stream, sum);
        const auto start = Clock::now();
        std::string error;
        try {
          if (gpu.rank() == 2) {
            last(gpu);
            gpu.communicator.barrier();
          } else {
            scene.recorded ? recording->replay(gpu.stream) : sum();
            gpu.finish();
          }
        } catch (const CommError& thrown) {
          error = thrown.what();
        }
        const bool in_time = Clock::now() - start < milliseconds(is_slow ? 20000 : 2500);
        for (int again = 0; again < 2; ++again) {
          conformance::require(conformance::error_of(sum) == error, "a later call throws another reason than \"" + error + "\"");
          conformance::require(conformance::error_of([&] { gpu.communicator.check(); }) == error, "a later check throws another reason");
        }
        recording.reset();
        throw std::runtime_error((in_time ? "in time: " : "late: ") + error);
      });
}

TEST_F(GpuFailure, APeerThatNeverArrivesIsNamedAtTheDeadline) {
  const milliseconds deadline(is_slow ? 6000 : 800);
  for (const Scene& scene : {Scene{"one_shot", true, deadline, false}, Scene{"two_shot", false, deadline, false},
                             Scene{"nccl_gather", false, deadline, false}, Scene{"nccl_slices", true, deadline, false}}) {
    const std::size_t used = used_memory();
    const Outcomes outcomes = play(scene, [&](GpuRank&) { std::this_thread::sleep_for(2 * deadline); });
    const std::string late = scene.transport.starts_with("nccl") ? "rank (unknown) is late" : "rank 2 is late";
    for (const std::string& outcome : outcomes) {
      EXPECT_THAT(outcome, HasSubstr("in time: " + late)) << scene.transport;
      EXPECT_THAT(outcome, HasSubstr(std::to_string(deadline.count()) + " ms, which is the deadline, at step 7, node n06 linear"))
          << scene.transport;
    }
    EXPECT_EQ(used_memory(), used) << scene.transport;
  }
}

TEST_F(GpuFailure, AnAbortEndsACollectiveOnEveryRank) {
  for (const std::string& transport : all_transports) {
    for (const bool recorded : {false, true}) {
      const std::size_t used = used_memory();
      const Outcomes outcomes = play({transport, recorded}, [](GpuRank& gpu) {
        std::this_thread::sleep_for(milliseconds(50));
        gpu.communicator.abort("rank 2 could not read a shard");
      });
      for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("in time: rank 2 could not read a shard")) << transport;
      EXPECT_EQ(used_memory(), used) << transport;
    }
  }
}

TEST_F(GpuFailure, AnAbortFromAnotherThreadOfARankThatWaits) {
  const TableFile table("0 one_shot\n");
  const conformance::SharedTree tree(9, 2);
  const Outcomes outcomes = run_gpus(
      2, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
      [&](GpuRank& gpu) {
        const device::cuda::DeviceMemory memory(5 * 64 * sizeof(float), "the test");
        if (gpu.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(200));
          gpu.communicator.barrier();
        }
        std::thread other([&] {
          std::this_thread::sleep_for(milliseconds(50));
          gpu.communicator.abort("SIGTERM came twice");
        });
        gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 64);
        std::string error = conformance::error_of([&] { gpu.finish(); });
        other.join();
        throw CommError(error);
      });
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("SIGTERM came twice"));
}

TEST_F(GpuFailure, ARankThatLeavesBecauseOfAnErrorIsToldToItsPeers) {
  const Outcomes outcomes = play({"one_shot"}, [](GpuRank&) { throw std::runtime_error("out of ideas"); });
  for (int rank : {0, 1}) EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)], HasSubstr("in time: rank 2 has left because of an error"));
  EXPECT_THAT(outcomes[2], HasSubstr("out of ideas"));
}

/// One rank's call fails, or NCCL does in the background: that is what every rank says.
TEST_F(GpuFailure, AFailureOfOneRankInACollectiveIsAnErrorOnAll) {
  struct Case {
    const char* function;
    const char* transport;
    const char* says;
  };
  for (const Case& each : {Case{"cudaLaunchKernel", "one_shot", "launching reduce_one_shot: too many resources requested for launch"},
                           Case{"cudaLaunchKernel", "nccl_slices", "launching sum_gathered: too many resources requested for launch"},
                           Case{"ncclAllGather", "nccl_gather", "gathering the roots of an all_reduce: NCCL says: "},
                           Case{"ncclSend", "nccl_slices", "exchanging the roots of an all_reduce: NCCL says: "},
                           Case{"ncclAsyncError", "nccl_gather", "an operation between GPUs: NCCL says: "}}) {
    const TableFile table("0 " + std::string(each.transport) + "\n");
    const std::size_t used = used_memory();
    const conformance::SharedTree tree(9, 3);
    const Outcomes outcomes = run_gpus(
        3, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
        [&](GpuRank& gpu) {
          const device::cuda::DeviceMemory memory(4 * 300 * sizeof(float), "the test");
          if (gpu.rank() == 0) simt::fail_call(each.function);
          gpu.communicator.barrier();
          std::string error;
          try {
            gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 300);
            gpu.finish();
            gpu.communicator.barrier();
          } catch (const std::exception& thrown) {
            error = thrown.what();
          }
          const std::string later = conformance::error_of([&] { gpu.communicator.check(); });
          conformance::require(later == error, "later: " + later + ", first: " + error);
          throw std::runtime_error(error);
        });
    for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr(each.says)) << each.function;
    EXPECT_EQ(used_memory(), used) << each.function;
    SetUp();
  }
}

TEST_F(GpuFailure, DifferentSumsAreFound) {
  for (const std::string transport : {"one_shot", "two_shot"}) {
    const TableFile table("0 " + transport + "\n");
    const conformance::SharedTree tree(9, 2), other_tree(8, 2);
    for (const bool other_size : {false, true}) {
      const Outcomes outcomes = run_gpus(
          2, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
          [&](GpuRank& gpu) {
            const device::cuda::DeviceMemory memory(5 * 64 * sizeof(float), "the test");
            const bool differs = gpu.rank() == 1;
            gpu.communicator.all_reduce(differs && !other_size ? other_tree.sum : tree.sum, memory.as<float>(),
                                        differs && other_size ? 63 : 64);
            gpu.finish();
          });
      for (const std::string& outcome : outcomes)
        EXPECT_THAT(outcome, HasSubstr("ranks 0 and 1 have called all_reduce with different trees, sizes")) << transport;
    }
  }
}

/// The failure of a call while the communicators are made is one clear error on every rank, and leaves no memory behind.
class GpuConstruction : public GpuFailure, public testing::WithParamInterface<const char*> {};

TEST_P(GpuConstruction, AFailingCallIsAnErrorOnEveryRankWithoutALeak) {
  const TableFile table("0 one_shot\n10000 nccl_slices\n");
  const std::size_t used = used_memory();
  int failures = 0;
  for (int call = 1; call < 40; ++call) {
    simt::fail_call(GetParam(), call);
    const auto start = Clock::now();
    std::atomic<int> made = 0;
    const Outcomes outcomes = run_gpus(
        3, [&](int) { return gpu_options(table.path()); }, conformance::small_options(), [&](GpuRank&) { ++made; });
    SetUp();
    EXPECT_EQ(used_memory(), used) << "call " << call;
    EXPECT_LT(Clock::now() - start, milliseconds(5000));
    if (made == 3) break;
    ++failures;
    EXPECT_EQ(made, 0) << "call " << call;
    for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, testing::Not(testing::IsEmpty()));
  }
  EXPECT_GE(failures, 3);
  EXPECT_LT(failures, 39);
}

INSTANTIATE_TEST_SUITE_P(Calls, GpuConstruction,
                         testing::Values("cudaMalloc", "cudaHostAlloc", "cudaMemsetAsync", "cudaStreamSynchronize",
                                         "cudaGetDeviceProperties", "ncclCommInitRankConfig", "ncclCommRegister"));

TEST_F(GpuFailure, TwoRanksOnOneGpuAreRefusedUnlessItIsAllowed) {
  const TableFile table("0 one_shot\n");
  for (const bool allowed : {false, true}) {
    CudaCommunicatorOptions options = gpu_options(table.path());
    options.share_gpu = allowed;
    const conformance::SharedTree tree(3, 3);
    const Outcomes outcomes = run_gpus(
        3, [&](int) { return options; }, conformance::small_options(),
        [&](GpuRank& gpu) {
          const device::cuda::DeviceMemory memory(sizeof(float), "the test");
          gpu.upload({static_cast<float>(gpu.rank() + 1)}, memory.as<float>());
          gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 1);
          conformance::require(gpu.download(memory.as<float>(), 1) == std::vector<float>{6.0f}, "1 + 2 + 3 is not 6");
        },
        [](int rank) { return rank / 2; });
    for (const std::string& outcome : outcomes) {
      if (allowed) {
        EXPECT_EQ(outcome, "");
      } else {
        EXPECT_THAT(outcome, HasSubstr("two ranks have the same GPU: rank 0 has emulated GPU (PCI 0000:01:00"));
      }
    }
  }
}

TEST_F(GpuFailure, OtherSettingsOnARankAreRefused) {
  const TableFile table("0 one_shot\n"), other("0 two_shot\n");
  const Outcomes outcomes = run_gpus(
      3, [&](int rank) { return gpu_options(rank == 2 ? other.path() : table.path()); }, conformance::small_options(), [](GpuRank&) {});
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("ranks 0 and 2 have different settings"));
}

TEST_F(GpuFailure, WithoutPeerAccessTheBuiltInTableUsesNccl) {
  const conformance::SharedTree tree(3, 3);
  simt::fail_call("cudaDeviceEnablePeerAccess", 4);
  const Outcomes outcomes = run_gpus(
      3, [&](int) { return gpu_options({}); }, conformance::small_options(),
      [&](GpuRank& gpu) {
        conformance::require(gpu.communicator.description().starts_with("NCCL"), gpu.communicator.description());
        ThroughTheGpu communicator(gpu);
        conformance::sums_have_the_closed_form(communicator);
      });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

TEST_F(GpuFailure, ATableThatAsksForMemoryThatCannotBeMappedIsRefused) {
  const TableFile table("0 one_shot\n");
  CudaCommunicatorOptions options = gpu_options(table.path());
  simt::fail_call("cudaDeviceEnablePeerAccess", 2);
  Outcomes outcomes = run_gpus(
      2, [&](int) { return options; }, conformance::small_options(), [](GpuRank&) {});
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("cannot map GPU memory of rank"));
  options.same_machine = false;
  outcomes = run_gpus(
      2, [&](int) { return options; }, conformance::small_options(), [](GpuRank&) {});
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("but the ranks are on several machines"));
}

}  // namespace
}  // namespace lockstep::comm
