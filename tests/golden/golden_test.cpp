// Logits, hidden states and greedy tokens of small models against the reference (fp32, Hugging Face transformers), at several numbers of
// ranks. The models in the tree are a part of the reference set; LOCKSTEP_GOLDENS names a folder with all of it.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/safetensors.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr float kLogitBound = 5e-4f;

struct Golden {
  std::string name;
  fs::path model;   // folder or GGUF file
  fs::path json;    // prompts, greedy tokens
  fs::path logits;  // logits.<prompt>
  fs::path hidden;  // may not exist
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

fs::path golden_root() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  return wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA);
}

std::vector<Golden> goldens() {
  std::vector<Golden> found;
  const fs::path root = golden_root();
  for (const char* name :
       {"llama-mha", "llama-gqa", "llama-gqa-bf16", "llama-gqa-fp16", "llama-gqa-sharded", "llama-tied", "llama-bias", "llama-headdim"}) {
    const fs::path folder = root / "models" / name;
    const fs::path answers = std::string(name) == "llama-gqa-sharded" ? root / "models" / "llama-gqa" : folder;
    if (fs::exists(folder))
      found.push_back(
          {name, folder, answers / "golden.json", answers / "golden_logits.safetensors", answers / "golden_hidden.safetensors"});
  }
  for (const char* name : {"llama-gqa-F32", "llama-gqa-F16", "llama-gqa-BF16", "gqa288-F32", "gqa288-F16", "gqa288-BF16", "gqa288-Q8_0",
                           "gqa288-Q4_0", "gqa288-Q4_1", "gqa288-Q5_0", "kquant256-Q4_K", "kquant256-Q5_K", "kquant256-Q6_K"}) {
    const fs::path stem = (fs::exists(root / "gguf" / "models") ? root / "gguf" / "models" : root / "gguf") / name;
    if (fs::exists(stem.string() + ".gguf")) {
      found.push_back({name, stem.string() + ".gguf", stem.string() + ".golden.json", stem.string() + ".golden.safetensors", ""});
    }
  }
  return found;
}

std::vector<float> read_tensor(const engine::WeightSource& source, const std::string& name) {
  const engine::StoredTensor* tensor = source.find(name);
  if (tensor == nullptr) throw std::runtime_error("no golden tensor " + name);
  std::vector<float> values(tensor->bytes / sizeof(float));
  source.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

float largest_difference(const std::vector<float>& got, const std::vector<float>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    const float difference = std::fabs(got[i] - expected[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

class Goldens : public testing::TestWithParam<std::tuple<Golden, int>> {
 protected:
  const Golden& golden() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  nlohmann::json prompts() const { return nlohmann::json::parse(std::ifstream(golden().json)).at("prompts"); }
};

class GoldenHiddenStates : public Goldens {};

TEST_P(Goldens, LogitsOfEveryPositionAndGreedyTokensMatchTheReference) {
  const auto expected = engine::read_safetensors(golden().logits);
  test::with_session(test::exact_setup(golden().model, ranks()), [&](engine::Session& session) {
    float largest = 0;
    const nlohmann::json all_prompts = prompts();
    for (const auto& [name, prompt] : all_prompts.items()) {
      const auto tokens = prompt.at("tokens").get<std::vector<std::int32_t>>();
      std::vector<float> got;
      for (const auto& row : test::prompt_logits(session, tokens)) got.insert(got.end(), row.begin(), row.end());
      const float difference = largest_difference(got, read_tensor(*expected, "logits." + name));
      EXPECT_LE(difference, kLogitBound) << name;
      largest = std::max(largest, difference);
      if (!prompt.contains("greedy")) continue;
      const auto greedy = prompt.at("greedy").get<std::vector<std::int32_t>>();
      EXPECT_EQ(test::greedy(session, tokens, static_cast<std::uint32_t>(greedy.size())), greedy) << name;
    }
    RecordProperty("largest_logit_difference", std::to_string(largest));
    std::printf("%s, %d ranks: largest logit difference %.2g\n", golden().name.c_str(), ranks(), static_cast<double>(largest));
  });
}

TEST_P(GoldenHiddenStates, OfEveryLayerMatchTheReference) {
  const auto expected = engine::read_safetensors(golden().hidden);
  test::with_session(test::exact_setup(golden().model, ranks()), [&](engine::Session& session) {
    std::map<std::string, std::vector<float>> got;
    session.forward(
        prompts().at("p33").at("tokens").get<std::vector<std::int32_t>>(), [](std::size_t, std::span<const float>) {},
        [&](const std::string& name, std::size_t, std::size_t, std::span<const float> values) {
          got[name].insert(got[name].end(), values.begin(), values.end());
        });
    const std::size_t num_layers = session.spec().num_layers;
    EXPECT_EQ(got.size(), 2 + 3 * num_layers);  // layer.0.in, three a layer, final_norm
    for (const auto& [name, values] : got) EXPECT_LE(largest_difference(values, read_tensor(*expected, name)), kLogitBound) << name;
  });
}

std::vector<Golden> goldens_with_hidden_states() {
  std::vector<Golden> found = goldens();
  std::erase_if(found, [](const Golden& golden) { return !fs::exists(golden.hidden); });
  return found;
}

std::string test_name(const testing::TestParamInfo<std::tuple<Golden, int>>& info) {
  std::string name = std::get<0>(info.param).name + "_ranks" + std::to_string(std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Goldens, testing::Combine(testing::ValuesIn(goldens()), testing::Values(1, 2, 3, 4)), test_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenHiddenStates,
                         testing::Combine(testing::ValuesIn(goldens_with_hidden_states()), testing::Values(1, 2, 3, 4)), test_name);

TEST(GoldenSet, TheTreeHasModelsOfBothKinds) {
  EXPECT_GE(goldens().size(), 10u);
  EXPECT_FALSE(goldens_with_hidden_states().empty());
}

}  // namespace
}  // namespace lockstep
