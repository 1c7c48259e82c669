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

#include "device/cpu/cpu_device.h"
#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "engine/runtime/rotary.h"
#include "engine/weights/safetensors.h"
#include "parallel/plan.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr float kLogitBound = 5e-4f;

struct Golden {
  std::string name;
  fs::path model;     // folder or GGUF file
  fs::path json;      // prompts, greedy tokens
  fs::path logits;    // logits.<prompt>
  fs::path hidden;    // may not exist
  int max_ranks = 4;  // to try
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

fs::path golden_root() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  return wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA);
}

std::vector<Golden> goldens() {
  std::vector<Golden> found;
  const fs::path root = golden_root();
  for (const char* name : {"llama-mha",
                           "llama-gqa",
                           "llama-gqa-bf16",
                           "llama-gqa-fp16",
                           "llama-gqa-sharded",
                           "llama-tied",
                           "llama-bias",
                           "llama-headdim",
                           "llama-linear",
                           "llama-dynamic",
                           "llama-yarn",
                           "llama3-rope",
                           "mistral-sw",
                           "mistral-nosw",
                           "qwen2",
                           "qwen3",
                           "gpt2",
                           "gemma",
                           "gemma2",
                           "gemma3",
                           "phi3",
                           "mixtral",
                           "qwen2-moe",
                           "qwen3-moe",
                           "olmo2",
                           "granite",
                           "smollm3",
                           "gpt-neox",
                           "starcoder2",
                           "stablelm",
                           "cohere",
                           "phi",
                           "glm4",
                           "opt",
                           "bloom"}) {
    const fs::path folder = root / "models" / name;
    const fs::path answers = std::string(name) == "llama-gqa-sharded" ? root / "models" / "llama-gqa" : folder;
    if (fs::exists(answers / "golden.json"))
      found.push_back(
          {name, folder, answers / "golden.json", answers / "golden_logits.safetensors", answers / "golden_hidden.safetensors"});
  }
  for (const char* name : {"llama-gqa-F32", "llama-gqa-F16", "llama-gqa-BF16", "gqa288-F32", "gqa288-F16", "gqa288-BF16", "gqa288-Q8_0",
                           "gqa288-Q4_0", "gqa288-Q4_1", "gqa288-Q5_0", "kquant256-Q4_K", "kquant256-Q5_K", "kquant256-Q6_K", "llama3-F32",
                           "qwen2-F32", "qwen2-Q8_0", "qwen3-F32"}) {
    const fs::path stem = (fs::exists(root / "gguf" / "models") ? root / "gguf" / "models" : root / "gguf") / name;
    if (fs::exists(stem.string() + ".gguf")) {
      found.push_back({name, stem.string() + ".gguf", stem.string() + ".golden.json", stem.string() + ".golden.safetensors", ""});
    }
  }
  // Blocks of 32 and heads of 16: two heads a leaf, two leaves.
  for (Golden& golden : found) golden.max_ranks = golden.name == "qwen2-Q8_0" ? 2 : 4;
  return found;
}

/// Each with every number of ranks.
std::vector<std::tuple<Golden, int>> with_ranks(const std::vector<Golden>& all) {
  std::vector<std::tuple<Golden, int>> cases;
  for (const Golden& golden : all) {
    for (int ranks = 1; ranks <= golden.max_ranks; ++ranks) cases.emplace_back(golden, ranks);
  }
  return cases;
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
      // Where angles depend on the length, keys stay as they were when they were computed, as with the reference's cache.
      const auto greedy = prompt.at(prompt.contains("greedy_with_cache") ? "greedy_with_cache" : "greedy").get<std::vector<std::int32_t>>();
      EXPECT_EQ(test::greedy(session, tokens, static_cast<std::uint32_t>(greedy.size())), greedy) << name;
    }
    RecordProperty("largest_logit_difference", std::to_string(largest));
    std::printf("%s, %d ranks: largest logit difference %.2g\n", golden().name.c_str(), ranks(), static_cast<double>(largest));
  });
}

/// Some modules of the reference add the residual themselves: what they give is the sum, and their branch was not recorded. One model has
/// no module for its feed-forward branch.
bool is_in_reference(const engine::WeightSource& expected, const std::string& name) {
  if (expected.find(name) == nullptr) return false;
  if (!name.ends_with(".attn_out") && !name.ends_with(".mlp_out")) return true;
  const std::string layer = name.substr(0, name.rfind('.'));
  return expected.find(layer + ".mlp_out") == nullptr || read_tensor(expected, layer + ".mlp_out") != read_tensor(expected, layer + ".out");
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
    float largest = 0;
    std::size_t compared = 0;
    for (const auto& [name, values] : got) {
      if (!is_in_reference(*expected, name)) continue;
      const float difference = largest_difference(values, read_tensor(*expected, name));
      EXPECT_LE(difference, kLogitBound) << name;
      largest = std::max(largest, difference);
      ++compared;
    }
    EXPECT_GE(compared, 2 + num_layers);
    RecordProperty("largest_hidden_difference", std::to_string(largest));
  });
}

class GoldenRanks : public testing::TestWithParam<Golden> {};

TEST_P(GoldenRanks, OfAnyNumberGiveTheSameBytes) {
  const auto all = nlohmann::json::parse(std::ifstream(GetParam().json)).at("prompts");
  const auto tokens = all.at("p33").at("tokens").get<std::vector<std::int32_t>>();
  std::vector<std::vector<float>> expected;
  for (int ranks = 1; ranks <= GetParam().max_ranks; ++ranks) {
    test::RunSetup setup = test::exact_setup(GetParam().model, ranks);
    setup.session.prefill_chunk = ranks == 3 ? 5 : 0;
    test::with_session(setup, [&](engine::Session& session) {
      const auto rows = test::prompt_logits(session, tokens);
      if (ranks == 1) expected = rows;
      EXPECT_EQ(rows.size(), tokens.size());
      EXPECT_TRUE(rows == expected) << ranks << " ranks";
    });
  }
}

/// What two graphs compute, as text; the files they are from do not matter.
std::string shown(const parallel::Graph& graph) {
  std::string text = parallel::print(parallel::plan(graph, 0, 1, device::cpu_activation_for), true);
  for (const parallel::Attention& attention : graph.attentions) {
    text += std::to_string(attention.scale) + " " + std::to_string(attention.window) + " " + std::to_string(attention.soft_cap) + " " +
            std::to_string(attention.rotary) + " " + std::to_string(attention.slopes.size()) + "\n";
  }
  return text;
}

engine::ModelSpec spec_of(const fs::path& config) {
  std::ifstream file(config);
  return engine::spec_from_hf_config(std::string(std::istreambuf_iterator<char>(file), {}), config.string());
}

TEST(GoldenConfigs, OldAndNewSpellingsMeanTheSameModel) {
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(golden_root() / "models")) {
    const fs::path old_config = entry.path() / "config.json", new_config = entry.path() / "config.v5.json";
    if (!fs::exists(new_config) || entry.path().filename() == "gpt-oss") continue;
    const engine::ModelSpec old_spec = spec_of(old_config), new_spec = spec_of(new_config);
    const parallel::Graph old_graph = engine::family_of(old_spec.architecture).build(old_spec),
                          new_graph = engine::family_of(new_spec.architecture).build(new_spec);
    EXPECT_EQ(shown(old_graph), shown(new_graph)) << entry.path();
    EXPECT_TRUE(old_graph.rotaries == new_graph.rotaries) << entry.path();
    EXPECT_EQ(old_spec.max_position_embeddings, new_spec.max_position_embeddings) << entry.path();
    ++compared;
  }
  EXPECT_GE(compared, 8u);
}

/// cos and sin of positions 0 .. 47, and of a sequence of 128.
TEST(GoldenRotary, TablesMatchTheReference) {
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(golden_root() / "models")) {
    const fs::path answers = entry.path() / "golden_rope.safetensors";
    if (!fs::exists(answers) || entry.path().filename() == "gpt-oss") continue;
    const auto expected = engine::read_safetensors(answers);
    const engine::ModelSpec spec = spec_of(entry.path() / "config.json");
    const parallel::Graph graph = engine::family_of(spec.architecture).build(spec);
    for (const parallel::Attention& attention : graph.attentions) {
      if (attention.rotary == parallel::kNone) continue;
      const parallel::Rotary& rotary = graph.rotaries[attention.rotary];
      const std::string prefix = spec.local_rope && attention.window != 0 ? "rotary_emb_local." : "rotary_emb.";
      for (const std::size_t length : {48, 128}) {
        device::StepBatch batch;
        batch.sequences = {{.num_tokens = static_cast<std::uint32_t>(length), .prompt_length = static_cast<std::uint32_t>(length)}};
        engine::RotaryAngles angles;
        engine::angles_of_tokens(rotary, batch, angles);
        const std::string suffix = length == 128 ? ".len128" : "";
        const std::vector<float> cosines = read_tensor(*expected, prefix + "cos" + suffix),
                                 sines = read_tensor(*expected, prefix + "sin" + suffix);
        const std::size_t half = rotary.dim / 2;
        ASSERT_EQ(cosines.size(), length * rotary.dim) << entry.path();
        // Cohere has each column twice in a row, the others the columns twice: read the first half, or every second.
        const bool doubled = half > 1 && cosines[rotary.dim] == cosines[rotary.dim + 1];
        float largest = 0;
        for (std::size_t row = 0; row < length; ++row) {
          for (std::size_t i = 0; i < half; ++i) {
            const std::size_t at = row * rotary.dim + (doubled ? 2 * i : i);
            largest = std::max(
                {largest, std::fabs(angles.cosines[row * half + i] - cosines[at]), std::fabs(angles.sines[row * half + i] - sines[at])});
          }
        }
        EXPECT_LE(largest, 2e-5f) << entry.path() << " " << length;
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 1u);
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

std::string model_name(const testing::TestParamInfo<Golden>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Goldens, testing::ValuesIn(with_ranks(goldens())), test_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenRanks, testing::ValuesIn(goldens()), model_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenHiddenStates, testing::ValuesIn(with_ranks(goldens_with_hidden_states())), test_name);

TEST(GoldenSet, TheTreeHasModelsOfBothKinds) {
  EXPECT_GE(goldens().size(), 10u);
  EXPECT_FALSE(goldens_with_hidden_states().empty());
}

}  // namespace
}  // namespace lockstep
