// The numeric contract on GPUs: tokens, log-probabilities and logits are the same bytes over batch mates, prefill chunks, preemption,
// graphs, and over as many ranks as there are GPUs. tests/simt has the axes that only an emulator has.

#include <algorithm>

#include "tests/gpu/contract_run.h"
#include "tests/support/temporary_folder.h"

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

/// Every combination; under emulation, where tests/simt has the axes, one of them all.
std::vector<test::GpuWay> ways() {
  if (test::kEmulated) return {{.sequences = 2, .chunk = 16, .preempt_every = 3, .graphs = false}};
  std::vector<test::GpuWay> all;
  for (const bool graphs : {true, false}) {
    for (const std::size_t sequences : {1, 2, 8}) {
      for (const std::size_t chunk : {1, 16, 512}) all.push_back({.sequences = sequences, .chunk = chunk, .graphs = graphs});
    }
    all.push_back({.preempt_every = 3, .graphs = graphs});
  }
  return all;
}

TEST_P(ContractOnGpus, AnswersAndLogitsAreTheSameBytesOnOneGpu) { expect_same(ways()); }

class ContractOnSeveralGpus : public ContractOnGpus {
 protected:
  int ranks() const override { return 2; }
};

TEST_P(ContractOnSeveralGpus, AnswersAndLogitsAreTheSameBytesForAnyNumberOfRanks) {
  constexpr int kMost = test::kEmulated ? 2 : 8;
  std::vector<test::GpuWay> several;
  for (int count = 2; count <= kMost && test::missing_gpus(count).empty(); ++count) {
    several.push_back({.ranks = count, .sequences = 2, .chunk = 16, .graphs = false});
    if (!test::kEmulated) several.push_back({.ranks = count});
  }
  expect_same(several);
}

/// Mixtures in 16 bits. How far a rounding that tips a router to another expert takes an answer is not bounded (model_test.cpp), but it
/// tips the same one for any number of ranks and beside any batch mates.
class ContractOfMixturesOnGpus : public test::OnGpus<testing::TestWithParam<std::string>> {
 protected:
  static constexpr int kMost = 3;
  int ranks() const override { return test::kEmulated ? kMost : 1; }
};

TEST_P(ContractOfMixturesOnGpus, AnswersAndLogitsIn16BitsAreTheSameBytesForAnyWayAndNumberOfRanks) {
  constexpr std::size_t kIds = 120;
  const std::filesystem::path model = std::filesystem::path(LOCKSTEP_TEST_DATA) / "models" / GetParam();
  const auto answers = [&](const test::GpuWay& way) { return test::answers_of(model, way, device::DType::kBF16, kIds); };
  const std::vector<std::string> expected = answers({});
  for (const std::string& answer : expected) ASSERT_FALSE(answer.empty());
  std::vector<test::GpuWay> all{{.sequences = 2, .chunk = 16, .preempt_every = 3}, {.sequences = 1, .chunk = 7, .graphs = false}};
  for (int count = 2; count <= kMost && test::missing_gpus(count).empty(); ++count)
    all.push_back({.ranks = count, .sequences = 3, .chunk = 16});
  for (const test::GpuWay& way : all) EXPECT_TRUE(test::same_answers(answers(way), expected)) << testing::PrintToString(way);
}

INSTANTIATE_TEST_SUITE_P(Models, ContractOfMixturesOnGpus, testing::Values("qwen2-moe", "gpt-oss"), [](const auto& model) {
  std::string name = model.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

const auto kTypes = testing::Values(device::DType::kBF16, device::DType::kF16, device::DType::kQ4_1, device::DType::kF32);
const auto name_of_type = [](const auto& type) { return std::string(device::info(type.param).name); };
INSTANTIATE_TEST_SUITE_P(Types, ContractOnGpus, kTypes, name_of_type);
INSTANTIATE_TEST_SUITE_P(Types, ContractOnSeveralGpus, kTypes, name_of_type);

}  // namespace
}  // namespace lockstep
