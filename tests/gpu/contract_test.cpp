// The numeric contract on GPUs: tokens, log-probabilities and logits are the same bytes over batch mates, prefill chunks, preemption,
// graphs, and over as many ranks as there are GPUs. tests/simt has the axes that only an emulator has.

#include "tests/gpu/contract_run.h"

namespace lockstep {
namespace {

class ContractOnGpus : public test::OnGpus<testing::TestWithParam<device::DType>> {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
    if (!IsSkipped()) test::write_tiny_gguf(model(), GetParam(), {.num_layers = 1, .feed_forward = 160});
  }
  std::filesystem::path model() const { return folder_.path() / "tiny.gguf"; }
  void expect_same(const std::vector<test::GpuWay>& ways) {
    const std::vector<std::string> expected = test::answers_of(model(), {});
    for (const std::string& answer : expected) ASSERT_FALSE(answer.empty());
    for (const test::GpuWay& way : ways) {
      EXPECT_TRUE(test::same_answers(test::answers_of(model(), way), expected)) << testing::PrintToString(way);
    }
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_P(ContractOnGpus, AnswersAndLogitsAreTheSameBytesOnOneGpu) {
  std::vector<test::GpuWay> ways;
  for (const bool graphs : {true, false}) {
    for (const std::size_t sequences : {1, 2, 8}) {
      for (const std::size_t chunk : {1, 16, 512}) ways.push_back({.sequences = sequences, .chunk = chunk, .graphs = graphs});
    }
    ways.push_back({.preempt_every = 3, .graphs = graphs});
  }
  expect_same(ways);
}

class ContractOnSeveralGpus : public ContractOnGpus {
 protected:
  int ranks() const override { return 2; }
};

TEST_P(ContractOnSeveralGpus, AnswersAndLogitsAreTheSameBytesForAnyNumberOfRanks) {
  std::vector<test::GpuWay> ways;
  for (int count = 2; count <= test::kMostRanks && test::missing_gpus(count).empty(); ++count) {
    ways.push_back({.ranks = count});
    ways.push_back({.ranks = count, .sequences = 2, .chunk = 16, .graphs = false});
  }
  expect_same(ways);
}

const auto kTypes = testing::Values(device::DType::kBF16, device::DType::kF16, device::DType::kQ4_1, device::DType::kF32);
const auto name_of_type = [](const auto& type) { return std::string(device::info(type.param).name); };
INSTANTIATE_TEST_SUITE_P(Types, ContractOnGpus, kTypes, name_of_type);
INSTANTIATE_TEST_SUITE_P(Types, ContractOnSeveralGpus, kTypes, name_of_type);

}  // namespace
}  // namespace lockstep
