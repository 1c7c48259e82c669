#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/cuda/tuning.h"
#include "comm/tree_sum.h"
#include "parallel/reduction_tree.h"
#include "simt/simt.h"
#include "tests/simt/comm_ranks.h"
#include "tests/simt/recording.h"

namespace lockstep::comm {
namespace {

using testing::HasSubstr;

const std::vector<std::string> all_transports = {"one_shot", "two_shot", "nccl_gather", "nccl_slices"};

/// Every transport x number of ranks x case of the suite is a test of its own. Not here: a mix of all_reduce and another operation, which
/// the host and the GPU wait for in different places; it ends at the deadline.
class GpuConformance : public testing::Test {
 public:
  GpuConformance(std::string transport, int size, Body body) : transport_(std::move(transport)), size_(size), body_(std::move(body)) {}
  void SetUp() override { reset_emulator(); }
  void TearDown() override { simt::reset(); }
  void TestBody() override {
    const TableFile table("0 " + transport_ + "\n");
    const Outcomes outcomes = run_gpus(
        size_, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
        [&](GpuRank& gpu) {
          ThroughTheGpu communicator(gpu);
          body_(communicator);
        });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }

 private:
  std::string transport_;
  int size_;
  Body body_;
};

const bool registered = [] {
  std::vector<conformance::Case> cases = conformance::cases();
  // Of a CPU device; comm_norm_test.cpp is about GPUs.
  std::erase_if(cases, [](const conformance::Case& each) { return each.name == "SumsWithTheirNormsAreTheTwoCalls"; });
  for (const conformance::Case& failing : conformance::failing_cases()) {
    if (failing.name != "OtherOperationsAreFound") cases.push_back(failing);
  }
  for (const std::string& transport : all_transports) {
    const bool everything = transport == "one_shot";
    for (const int size : everything ? std::vector<int>{1, 2, 3, 4, 8} : std::vector<int>{2, 3}) {
      if (is_slow && size != 2) continue;
      for (const conformance::Case& each : cases) {
        const bool is_sum = each.name.find("Sum") != std::string::npos || each.name == "MixedCallsKeepTheirOrder";
        if ((!everything && !is_sum) || (is_slow && each.name == "SumsAreTheBitsOfThePlainTree")) continue;
        testing::RegisterTest(("Gpu_" + transport + "_Of" + std::to_string(size)).c_str(), each.name.c_str(), nullptr, nullptr, __FILE__,
                              __LINE__, [=]() -> testing::Test* { return new GpuConformance(transport, size, each.run); });
      }
    }
  }
  return true;
}();

/// Ranks that share the leaves of a model's product.
struct Shares {
  TreeSum tree;
  std::vector<std::vector<parallel::Range>> roots;

  Shares(std::size_t leaves, int ranks) {
    const parallel::ReductionTree reduction(leaves);
    std::vector<parallel::Range> shares;
    for (int rank = 0; rank < ranks; ++rank)
      shares.push_back(parallel::even_share(leaves, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks)));
    for (const parallel::Range& share : shares) roots.push_back(reduction.roots(share));
    tree = reduction.tree_sum(shares);
  }
  std::size_t roots_of(int rank) const { return roots[static_cast<std::size_t>(rank)].size(); }

  /// What a rank puts in: any values, different for each root.
  std::vector<float> values_of(int rank, std::size_t count, std::size_t seed = 0) const {
    std::vector<float> values;
    for (const parallel::Range& root : roots[static_cast<std::size_t>(rank)]) {
      for (std::size_t i = 0; i < count; ++i) values.push_back(conformance::noise(root.begin * 64 + root.end, i + seed));
    }
    return values;
  }
  /// What the CPU's communicators give.
  std::vector<float> sum(std::size_t count, std::size_t seed = 0) const {
    std::vector<std::vector<float>> parts;
    std::vector<const float*> sources;
    for (std::size_t rank = 0; rank < roots.size(); ++rank) {
      parts.push_back(values_of(static_cast<int>(rank), count, seed));
      for (std::size_t root = 0; root < roots[rank].size(); ++root) sources.push_back(parts.back().data() + root * count);
    }
    std::vector<float> out(count);
    TreeScratch scratch;
    tree_sum(tree, sources, out.data(), count, scratch);
    return out;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GpuAllReduce : public testing::Test {
 protected:
  void SetUp() override { reset_emulator(); }
  void TearDown() override { simt::reset(); }
};

void expect_sum(GpuRank& gpu, const Shares& shares, std::size_t count, std::size_t seed = 0) {
  const std::vector<float> mine = shares.values_of(gpu.rank(), count, seed);
  const device::cuda::DeviceMemory memory(mine.size() * sizeof(float), "the test");
  gpu.upload(mine, memory.as<float>());
  gpu.communicator.all_reduce(shares.tree, memory.as<float>(), count);
  conformance::require(same_bits(gpu.download(memory.as<float>(), count), shares.sum(count, seed)),
                       "the sum of " + std::to_string(count) + " values has other bits");
}

// 40 leaves on 1 to 8 ranks: from 1 to 4 roots each, and as many ranks as the emulator has devices.
TEST_F(GpuAllReduce, GivesTheBitsOfTheCpuOnAnyNumberOfRanksOverEveryTransport) {
  for (const std::string& transport : all_transports) {
    const TableFile table("0 " + transport + "\n");
    for (int size = 1; size <= (is_slow ? 3 : 8); ++size) {
      const Shares shares(40, size);
      const Outcomes outcomes = run_gpus(
          size, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
          [&](GpuRank& gpu) {
            for (const std::size_t count : {1, 3, 4, 1000, 5001, 36 * 64}) expect_sum(gpu, shares, count, count);
          });
      for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << transport << ", " << size << " ranks";
    }
  }
}

TEST_F(GpuAllReduce, GivesTheBitsOfTheCpuForFourMillionValues) {
  for (const std::string& transport : all_transports) {
    const TableFile table("0 " + transport + "\n");
    const std::size_t count = (std::size_t{4} << (is_slow ? 12 : 20)) + (transport == "two_shot" ? 0 : 4);
    const Shares shares(3, 2);
    const std::vector<float> expected = shares.sum(count);
    CudaCommunicatorOptions options = gpu_options(table.path());
    options.slot_bytes = std::size_t{64} << 10;
    options.max_values = count / 8;  // NCCL has to go in pieces
    const Outcomes outcomes = run_gpus(
        2, [&](int) { return options; }, conformance::small_options(),
        [&](GpuRank& gpu) {
          const std::vector<float> mine = shares.values_of(gpu.rank(), count);
          const device::cuda::DeviceMemory memory(mine.size() * sizeof(float), "the test");
          gpu.upload(mine, memory.as<float>());
          gpu.communicator.all_reduce(shares.tree, memory.as<float>(), count);
          conformance::require(same_bits(gpu.download(memory.as<float>(), count), expected), "other bits");
        });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << transport;
  }
}

// Slots are used in turn by calls of any size and of both kinds of kernel, without a wait in between.
TEST_F(GpuAllReduce, CallsOfAlternatingSizesFollowEachOtherWithoutAWait) {
  const TableFile table("0 one_shot\n20000 two_shot\n");
  for (const auto order : {simt::StreamOrder::kEager, simt::StreamOrder::kLazy}) {
    simt::config().stream_order = order;
    const Shares shares(9, 4);
    const std::vector<std::size_t> counts = {16, 5000, 1, 700, 9000, 64, 64, 2048};
    const Outcomes outcomes = run_gpus(
        4, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
        [&](GpuRank& gpu) {
          std::vector<device::cuda::DeviceMemory> memories;
          for (std::size_t call = 0; call < 3 * counts.size(); ++call) {
            const std::vector<float> mine = shares.values_of(gpu.rank(), counts[call % counts.size()], call);
            memories.emplace_back(mine.size() * sizeof(float), "the test");
            gpu.upload(mine, memories.back().as<float>());
          }
          for (std::size_t call = 0; call < memories.size(); ++call)
            gpu.communicator.all_reduce(shares.tree, memories[call].as<float>(), counts[call % counts.size()]);
          for (std::size_t call = 0; call < memories.size(); ++call) {
            const std::size_t count = counts[call % counts.size()];
            conformance::require(same_bits(gpu.download(memories[call].as<float>(), count), shares.sum(count, call)),
                                 "call " + std::to_string(call) + " has other bits");
          }
        });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }
}

TEST_F(GpuAllReduce, GivesTheSameBitsUnderEveryScheduleAndStreamOrder) {
  const Shares shares(9, 3);
  for (const std::string& transport : all_transports) {
    const TableFile table("0 " + transport + "\n");
    std::uint64_t seed = 0;
    for (const simt::Schedule schedule :
         {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      for (const simt::StreamOrder order :
           {simt::StreamOrder::kEager, simt::StreamOrder::kLazy, simt::StreamOrder::kLastFirst, simt::StreamOrder::kRandom}) {
        simt::config().schedule = schedule;
        simt::config().stream_order = order;
        simt::config().seed = ++seed;
        simt::config().shuffle_blocks = seed % 2 == 0;
        const Outcomes outcomes = run_gpus(
            3, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
            [&](GpuRank& gpu) {
              for (const std::size_t count : {5, 3000, 6000}) expect_sum(gpu, shares, count);
            });
        for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << transport << ", seed " << seed;
      }
    }
  }
}

// Recorded once, replayed with other values, at other times on each rank, and between calls that are not recorded.
TEST_F(GpuAllReduce, ARecordingIsReplayedManyTimes) {
  for (const std::string& transport : all_transports) {
    const TableFile table("0 " + transport + "\n");
    for (const auto order : {simt::StreamOrder::kEager, simt::StreamOrder::kRandom}) {
      simt::config().stream_order = order;
      const Shares shares(9, 3);
      const std::size_t count = 2050, small = 12;
      const Outcomes outcomes = run_gpus(
          3, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
          [&](GpuRank& gpu) {
            const std::size_t roots = shares.roots_of(gpu.rank());
            const device::cuda::DeviceMemory large(roots * count * sizeof(float), "the test"),
                little(roots * small * sizeof(float), "the test");
            const Recording recording(gpu.stream, [&] {
              gpu.communicator.all_reduce(shares.tree, large.as<float>(), count);
              gpu.communicator.all_reduce(shares.tree, little.as<float>(), small);
              gpu.communicator.all_reduce(shares.tree, little.as<float>(), small);  // of sums: root 0 of each rank
            });
            for (std::size_t replay = 0; replay < 5; ++replay) {
              gpu.upload(shares.values_of(gpu.rank(), count, replay), large.as<float>());
              gpu.upload(std::vector<float>(roots * small, 0.0f), little.as<float>());
              if (static_cast<int>(replay) % 3 == gpu.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
              recording.replay(gpu.stream);
              conformance::require(same_bits(gpu.download(large.as<float>(), count), shares.sum(count, replay)),
                                   "replay " + std::to_string(replay) + " has other bits");
              if (replay % 2 == 1) expect_sum(gpu, shares, 333, replay);
            }
          });
      for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << transport;
    }
  }
}

TEST_F(GpuAllReduce, TheFastModeGivesTheSameOnAllRanksAndIsClose) {
  const Shares shares(9, 4);
  std::vector<std::vector<float>> sums(4);
  CudaCommunicatorOptions options = gpu_options({});
  options.fast = true;
  const Outcomes outcomes = run_gpus(
      4, [&](int) { return options; }, conformance::small_options(),
      [&](GpuRank& gpu) {
        std::vector<float> mine(shares.roots_of(gpu.rank()) * 1000);
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>(i % 1000 % 17 + 1);  // exact in any order
        const device::cuda::DeviceMemory memory(mine.size() * sizeof(float), "the test");
        gpu.upload(mine, memory.as<float>());
        gpu.communicator.all_reduce(shares.tree, memory.as<float>(), 1000);
        sums[static_cast<std::size_t>(gpu.rank())] = gpu.download(memory.as<float>(), 1000);
      });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  const auto num_roots = static_cast<float>(total_roots(shares.tree));
  for (const std::vector<float>& sum : sums) {
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], num_roots * static_cast<float>(i % 17 + 1)) << i;
  }
}

TEST_F(GpuAllReduce, TheTableDecidesWhichKernelRuns) {
  const TableFile table("0 one_shot\n4000 two_shot\n");
  const Shares shares(2, 2);
  const auto runs = [](const char* kernel) {
    std::uint64_t sum = 0;
    for (const auto& [name, count] : simt::counters().kernels) sum += name.find(kernel) != std::string::npos ? count : 0;
    return sum;
  };
  const Outcomes outcomes = run_gpus(
      2, [&](int) { return gpu_options(table.path()); }, conformance::small_options(),
      [&](GpuRank& gpu) {
        for (const std::size_t count : {499, 500, 501}) expect_sum(gpu, shares, count);  // 2 roots x 4 bytes
      });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  EXPECT_EQ(runs("one_shot_kernel"), 2u);
  EXPECT_EQ(runs("two_shot_kernel"), 4u);
}

}  // namespace
}  // namespace lockstep::comm
