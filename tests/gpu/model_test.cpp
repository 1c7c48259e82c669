// Whole models on GPUs: against the reference, and against the CPU.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "device/cpu/cpu_device.h"
#include "engine/weights/safetensors.h"
#include "tests/gpu/gpus.h"
#include "tests/support/goldens.h"
#include "tests/support/rounding_device.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::Golden;
using Rows = std::vector<std::vector<float>>;

constexpr float kLogitBound = 5e-4f;  // of fp32 arithmetic, as in the golden tests of the CPU

const std::vector<std::string> kFloatModels{"llama-mha",         "llama-gqa",     "llama-gqa-bf16", "llama-gqa-fp16",
                                            "llama-gqa-sharded", "llama-tied",    "llama-bias",     "llama-headdim",
                                            "llama-gqa-F32",     "llama-gqa-F16", "llama-gqa-BF16"};
const std::vector<std::string> kOtherFamilies{"gpt2",  "gemma2",        "gemma3",        "olmo2",         "qwen3",
                                              "bloom", "llama-dynamic", "opt-post-norm", "phi-head-norms"};
/// A rounding that tips a router to another expert is not explained by what it does elsewhere: in 16 bits with all experts chosen, and by
/// the bytes of contract_test.cpp.
const std::vector<std::string> kMixtures{"qwen2-moe", "gpt-oss"};
const std::vector<std::string> kBlockModels{"gqa288-Q8_0", "gqa288-Q4_0", "gqa288-Q4_1"};

/// Those of the reference data that have one of these names.
std::vector<Golden> named(const std::vector<std::string>& names) {
  static const std::vector<Golden> known = [] {
    std::vector<Golden> all = test::golden_folders();
    std::ranges::move(test::golden_files(), std::back_inserter(all));
    return all;
  }();
  std::vector<Golden> found;
  for (const std::string& name : names) {
    const auto golden = std::ranges::find(known, name, &Golden::name);
    if (golden == known.end()) throw std::runtime_error("no golden model " + name);
    found.push_back(*golden);
  }
  return found;
}

/// Models that only runs with the wider reference set take, which LOCKSTEP_GOLDENS names: checks by hand.
std::vector<Golden> wider_models(bool with_mixtures) {
  if (std::getenv("LOCKSTEP_GOLDENS") == nullptr) return {};
  std::vector<Golden> goldens = test::having("prompts", test::golden_folders());
  std::erase_if(goldens, [&](const Golden& golden) {
    const bool is_mixture = golden.name == "mixtral" || golden.name.ends_with("-moe");
    const auto has_it = [&](const std::vector<std::string>& names) { return std::ranges::count(names, golden.name) > 0; };
    return has_it(kFloatModels) || has_it(kOtherFamilies) || has_it(kMixtures) || (is_mixture && !with_mixtures);
  });
  return goldens;
}

std::vector<std::int32_t> prompt_of(const Golden& golden, const std::string& prompt) {
  return golden.answers().at("prompts").at(prompt).at("tokens").get<std::vector<std::int32_t>>();
}

/// [tokens][vocabulary]
Rows reference(const Golden& golden, const std::string& tensor, std::size_t tokens) {
  const fs::path native = fs::path(LOCKSTEP_TEST_DATA) / "models" / golden.name / "golden_native.safetensors";
  const auto source = engine::read_safetensors(tensor.starts_with("native.") ? native : golden.logits);
  const std::vector<float> values = test::golden_values(*source, tensor);
  Rows rows(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::size_t columns = values.size() / tokens;
    rows[t].assign(values.begin() + static_cast<std::ptrdiff_t>(t * columns),
                   values.begin() + static_cast<std::ptrdiff_t>((t + 1) * columns));
  }
  return rows;
}

float largest_difference(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
    const float difference = test::largest_difference(a[t], b[t]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

bool same_bits(const Rows& a, const Rows& b) {
  const auto same_row = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](float p, float q) { return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q); });
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_row);
}

Rows logits_of(const test::RunSetup& setup, const std::vector<std::int32_t>& prompt) {
  Rows rows;
  test::with_session(setup, [&](engine::Session& session) { rows = test::prompt_logits(session, prompt); });
  return rows;
}

class ModelOnGpus : public test::OnGpus<testing::TestWithParam<std::tuple<Golden, int>>> {
 protected:
  const Golden& golden() const { return std::get<0>(GetParam()); }
  int ranks() const override { return std::get<1>(GetParam()); }
};

class ExactOnGpus : public ModelOnGpus {};
class KvCacheOf8BitsOnGpus : public ModelOnGpus {};
class FloatTypesOnGpus : public ModelOnGpus {};
class BlockTypesOnGpus : public ModelOnGpus {};
class MixturesOnGpus : public ModelOnGpus {};

TEST_P(ExactOnGpus, LogitsAreTheBitsOfTheCpuAndWithinTheBoundOfTheReference) {
  const test::RunSetup setup = test::exact_setup(golden().model, ranks());
  for (const char* name : {"p1", "p33"}) {
    const auto prompt = prompt_of(golden(), name);
    const Rows got = logits_of(test::on_gpus(setup), prompt);
    EXPECT_LE(largest_difference(got, reference(golden(), std::string("logits.") + name, prompt.size())), kLogitBound) << name;
    EXPECT_TRUE(same_bits(got, logits_of(setup, prompt))) << name;
  }
}

TEST_P(KvCacheOf8BitsOnGpus, LogitsAreTheBitsOfTheCpu) {
  for (const device::KvQuantisation quantised : {device::KvQuantisation::kInt8, device::KvQuantisation::kFloat8}) {
    test::RunSetup setup = test::exact_setup(golden().model, ranks());
    setup.session.kv_quantised = quantised;
    const auto prompt = prompt_of(golden(), "p33");
    EXPECT_TRUE(same_bits(logits_of(test::on_gpus(setup), prompt), logits_of(setup, prompt))) << name_of(quantised);
  }
}

device::Activation activation_of(device::DType dtype) {
  return dtype == device::DType::kF16 ? device::Activation::kFloat16 : device::Activation::kBFloat16;
}

/// What rounding weights and activations to `dtype` alone does: on the CPU, with sums in fp32.
float rounding_error(const Golden& golden, device::DType dtype, const std::vector<std::int32_t>& prompt, const Rows& exact) {
  test::RunSetup setup = test::exact_setup(golden.model, 1);
  setup.session.dtype = dtype;
  setup.open_rank = [&](comm::Communicator&) {
    return comm::CudaRank{test::make_rounding_device(activation_of(dtype), setup.isa), nullptr};
  };
  return largest_difference(logits_of(setup, prompt), exact);
}

/// How far 16-bit arithmetic on GPUs is off, and how much of that is explained: it may be twice as much.
void expect_explained(const Golden& golden, int ranks, float found, float explained) {
  std::printf("%s, %d GPUs: %.3g off, explained %.3g\n", golden.name.c_str(), ranks, static_cast<double>(found),
              static_cast<double>(explained));
  EXPECT_GT(found, 0.0f);
  EXPECT_LE(found, 2 * explained);
}

TEST_P(FloatTypesOnGpus, SixteenBitLogitsAreOffTheReferenceByAtMostTwiceWhatRoundingExplains) {
  const bool is_fp16 = golden().name == "llama-gqa-fp16" || golden().name == "llama-gqa-F16";
  const device::DType dtype = is_fp16 ? device::DType::kF16 : device::DType::kBF16;
  const auto prompt = prompt_of(golden(), "p33");
  const Rows exact = reference(golden(), "logits.p33", prompt.size());
  const bool has_native = golden().name == "llama-gqa-bf16" || golden().name == "llama-gqa-fp16";
  const float explained = has_native ? largest_difference(reference(golden(), "native.p33", prompt.size()), exact)
                                     : rounding_error(golden(), dtype, prompt, exact);
  test::RunSetup setup = test::exact_setup(golden().model, ranks());
  setup.session.dtype = dtype;
  expect_explained(golden(), ranks(), largest_difference(logits_of(test::on_gpus(setup), prompt), exact), explained);
}

/// Where a token takes all experts no rounding can tip a router: what is left of a mixture is as smooth as other models.
TEST_P(MixturesOnGpus, OfWhichEveryTokenTakesAllSixteenBitLogitsAreOffByAtMostTwiceWhatRoundingExplains) {
  const test::TemporaryFolder folder;
  fs::copy(golden().model, folder.path(), fs::copy_options::recursive);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(golden().model / "config.json"));
  config.at("num_experts_per_tok") = config.contains("num_experts") ? config.at("num_experts") : config.at("num_local_experts");
  folder.write("config.json", config.dump());
  Golden all = golden();
  all.model = folder.path();
  const auto prompt = prompt_of(golden(), "p33");
  const Rows exact = logits_of(test::exact_setup(all.model, 1), prompt);
  EXPECT_FALSE(same_bits(exact, logits_of(test::exact_setup(golden().model, 1), prompt)));
  test::RunSetup setup = test::exact_setup(all.model, ranks());
  setup.session.dtype = device::DType::kBF16;
  expect_explained(all, ranks(), largest_difference(logits_of(test::on_gpus(setup), prompt), exact),
                   rounding_error(all, device::DType::kBF16, prompt, exact));
}

TEST_P(BlockTypesOnGpus, LogitsAreOffTheCpuInFloat32ByAtMostTwiceWhatRoundingExplains) {
  const auto prompt = prompt_of(golden(), "p33");
  const Rows exact = logits_of(test::exact_setup(golden().model, 1), prompt);
  test::RunSetup setup = test::exact_setup(golden().model, ranks());
  setup.session.dtype.reset();
  setup.session.kv_dtype = device::DType::kBF16;
  expect_explained(golden(), ranks(), largest_difference(logits_of(test::on_gpus(setup), prompt), exact),
                   rounding_error(golden(), device::DType::kBF16, prompt, exact));
}

std::string test_name(const testing::TestParamInfo<std::tuple<Golden, int>>& info) {
  return test::test_name(std::get<0>(info.param)) + "_gpus" + std::to_string(std::get<1>(info.param));
}

const auto kRanks = testing::Values(1, 2, 3, 4);
INSTANTIATE_TEST_SUITE_P(Models, KvCacheOf8BitsOnGpus,
                         testing::Combine(testing::ValuesIn(named({"llama-gqa", "gemma2", "qwen3"})), testing::Values(1, 2)), test_name);
INSTANTIATE_TEST_SUITE_P(Models, ExactOnGpus, testing::Combine(testing::ValuesIn(named(kFloatModels)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(OtherFamilies, ExactOnGpus, testing::Combine(testing::ValuesIn(named(kOtherFamilies)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Mixtures, ExactOnGpus, testing::Combine(testing::ValuesIn(named(kMixtures)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Models, MixturesOnGpus, testing::Combine(testing::ValuesIn(named(kMixtures)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Wider, ExactOnGpus, testing::Combine(testing::ValuesIn(wider_models(true)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Wider, FloatTypesOnGpus, testing::Combine(testing::ValuesIn(wider_models(false)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(OtherFamilies, FloatTypesOnGpus, testing::Combine(testing::ValuesIn(named(kOtherFamilies)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(BlockModels, ExactOnGpus, testing::Combine(testing::ValuesIn(named(kBlockModels)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Models, FloatTypesOnGpus, testing::Combine(testing::ValuesIn(named(kFloatModels)), kRanks), test_name);
INSTANTIATE_TEST_SUITE_P(Models, BlockTypesOnGpus, testing::Combine(testing::ValuesIn(named(kBlockModels)), kRanks), test_name);

}  // namespace
}  // namespace lockstep
