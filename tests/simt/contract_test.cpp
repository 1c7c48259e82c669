// The numeric contract on emulated GPUs: tokens, log-probabilities and logits are the same bytes over ranks, batch mates, prefill chunks,
// preemption, graphs, the order in which threads and streams run. Each axis against one baseline; LOCKSTEP_CONTRACT=full runs the product.

#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/gpu/contract_run.h"
#include "tests/simt/simt.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Way : test::GpuWay {
  simt::Schedule schedule = simt::Schedule::kForward;
  simt::StreamOrder stream_order = simt::StreamOrder::kEager;
  std::uint64_t seed = 1;
};

void PrintTo(const Way& way, std::ostream* out) {
  test::PrintTo(static_cast<const test::GpuWay&>(way), out);
  *out << ", schedule " << static_cast<int>(way.schedule) << ", streams " << static_cast<int>(way.stream_order) << ", seed " << way.seed;
}

class ContractOnEmulatedGpus : public testing::TestWithParam<device::DType> {
 protected:
  void SetUp() override {
    simt::reset();
    test::write_tiny_gguf(model_, GetParam(), {.num_layers = 1, .feed_forward = 160});
  }
  void TearDown() override { simt::reset(); }

  std::vector<std::string> run(const Way& way) {
    simt::reset();
    simt::config().schedule = way.schedule;
    simt::config().stream_order = way.stream_order;
    simt::config().seed = way.seed;
    simt::config().device_count = 9;
    simt::config().shuffle_blocks = way.schedule == simt::Schedule::kRandom;
    simt::config().graph_order = way.schedule == simt::Schedule::kRandom ? simt::GraphOrder::kRandom : simt::GraphOrder::kCaptured;
    return test::answers_of(model_, way);
  }

 private:
  test::TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "tiny.gguf";
};

/// One axis each. The kernels differ by type, the rest does not: so one type gets the most.
std::vector<Way> ways(device::DType dtype) {
  std::vector<Way> all;
  const bool most = dtype == device::DType::kBF16;
  for (const int ranks : {2, 3, 4, 9}) {
    if (most || ranks == 3) all.push_back({{.ranks = ranks}});
  }
  all.push_back({{.sequences = 1}});
  all.push_back({{.sequences = 2}});
  for (const std::size_t chunk : {1, 16}) all.push_back({{.chunk = chunk}});
  all.push_back({{.preempt_every = 3}});
  all.push_back({{.graphs = false}});
  all.push_back({{}, simt::Schedule::kReverse});
  all.push_back({{}, simt::Schedule::kOneWarpFirst});
  for (std::uint64_t seed = 1; seed <= (most ? 10 : 2); ++seed)
    all.push_back({{.ranks = seed % 2 == 0 ? 2 : 1}, simt::Schedule::kRandom, simt::StreamOrder::kEager, seed});
  for (const simt::StreamOrder order : {simt::StreamOrder::kLazy, simt::StreamOrder::kLastFirst, simt::StreamOrder::kRandom})
    all.push_back({{.ranks = 2}, simt::Schedule::kForward, order});
  return all;
}

std::vector<Way> product() {
  std::vector<Way> all;
  for (const int ranks : {1, 2, 3, 4})
    for (const std::size_t sequences : {1, 8})
      for (const std::size_t chunk : {1, 16, 512})
        for (const bool graphs : {true, false})
          for (const simt::Schedule schedule : {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom})
            for (const simt::StreamOrder order : {simt::StreamOrder::kEager, simt::StreamOrder::kLazy, simt::StreamOrder::kRandom})
              all.push_back({{ranks, sequences, chunk, 0, graphs}, schedule, order, 7});
  return all;
}

TEST_P(ContractOnEmulatedGpus, AnswersAndLogitsAreTheSameBytes) {
  const char* wanted = std::getenv("LOCKSTEP_CONTRACT");
  const bool full = wanted != nullptr && std::string(wanted) == "full";
  const std::vector<std::string> expected = run({});
  for (const std::string& answer : expected) ASSERT_FALSE(answer.empty());
  for (const Way& way : full ? product() : ways(GetParam())) {
    EXPECT_TRUE(test::same_answers(run(way), expected)) << testing::PrintToString(way);
    if (HasFailure()) return;  // the first way that differs says enough
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ContractOnEmulatedGpus,
                         testing::Values(device::DType::kBF16, device::DType::kF16, device::DType::kQ4_1, device::DType::kF32),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

}  // namespace
}  // namespace lockstep
