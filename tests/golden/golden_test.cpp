// Logits, hidden states and greedy tokens of small models against the reference (fp32, Hugging Face transformers), at several numbers of
// ranks. The models in the tree are a part of the reference set; LOCKSTEP_GOLDENS names a folder with all of it.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "engine/runtime/rotary.h"
#include "engine/weights/safetensors.h"
#include "parallel/plan.h"
#include "tests/golden/record.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using test::Golden;

constexpr float kLogitBound = 5e-4f, kRotaryBound = 2e-5f;

class Goldens : public testing::TestWithParam<std::tuple<Golden, int>> {
 protected:
  const Golden& golden() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

class GoldenHiddenStates : public Goldens {};

TEST_P(Goldens, LogitsOfEveryPositionAndGreedyTokensMatchTheReference) {
  const auto expected = engine::read_safetensors(golden().logits);
  test::with_session(test::exact_setup(golden().model, ranks()), [&](engine::Session& session) {
    float largest = 0;
    const nlohmann::json answers = golden().answers();
    for (const auto& [name, prompt] : answers.at("prompts").items()) {
      const auto tokens = prompt.at("tokens").get<std::vector<std::int32_t>>();
      std::vector<float> got;
      for (const auto& row : test::prompt_logits(session, tokens)) got.insert(got.end(), row.begin(), row.end());
      const float difference = test::largest_difference(got, test::golden_values(*expected, "logits." + name));
      EXPECT_LE(difference, kLogitBound) << name;
      largest = std::max(largest, difference);
      if (!prompt.contains("greedy")) continue;
      // Where angles depend on the length, keys stay as they were when they were computed, as with the reference's cache.
      const auto greedy = prompt.at(prompt.contains("greedy_with_cache") ? "greedy_with_cache" : "greedy").get<std::vector<std::int32_t>>();
      EXPECT_EQ(test::greedy(session, tokens, static_cast<std::uint32_t>(greedy.size())), greedy) << name;
    }
    test::record_largest(golden(), "logits", largest);
    if (answers.contains("greedy_eos")) {
      const nlohmann::json& until_eos = answers["greedy_eos"];
      const auto prompt = answers["prompts"].at(until_eos.at("prompt").get<std::string>()).at("tokens").get<std::vector<std::int32_t>>();
      EXPECT_EQ(test::greedy(session, prompt, 48, {until_eos.at("eos_token_id").get<std::int32_t>()}),
                until_eos.at("tokens").get<std::vector<std::int32_t>>());
    }
  });
}

/// Some modules of the reference add the residual themselves: what they give is the sum, and their branch was not recorded. One model has
/// no module for its feed-forward branch.
bool is_in_reference(const engine::WeightSource& expected, const std::string& name) {
  if (expected.find(name) == nullptr) return false;
  if (!name.ends_with(".attn_out") && !name.ends_with(".mlp_out")) return true;
  const std::string layer = name.substr(0, name.rfind('.'));
  return expected.find(layer + ".mlp_out") == nullptr ||
         test::golden_values(expected, layer + ".mlp_out") != test::golden_values(expected, layer + ".out");
}

TEST_P(GoldenHiddenStates, OfEveryLayerMatchTheReference) {
  const auto expected = engine::read_safetensors(golden().hidden);
  test::with_session(test::exact_setup(golden().model, ranks()), [&](engine::Session& session) {
    std::map<std::string, std::vector<float>> got;
    session.forward(
        golden().answers().at("prompts").at("p33").at("tokens").get<std::vector<std::int32_t>>(),
        [](std::size_t, std::span<const float>) {},
        [&](const std::string& name, std::size_t, std::size_t, std::span<const float> values) {
          got[name].insert(got[name].end(), values.begin(), values.end());
        });
    const std::size_t num_layers = session.spec().num_layers, around = session.spec().final_norm ? 2 : 1;  // layer.0.in, final_norm
    EXPECT_EQ(got.size(), around + 3 * num_layers);
    float largest = 0;
    std::size_t compared = 0;
    for (const auto& [name, values] : got) {
      if (!is_in_reference(*expected, name)) continue;
      const float difference = test::largest_difference(values, test::golden_values(*expected, name));
      EXPECT_LE(difference, kLogitBound) << name;
      largest = std::max(largest, difference);
      ++compared;
    }
    EXPECT_GE(compared, around + num_layers);
    test::record_largest(golden(), "hidden_states", largest);
  });
}

class GoldenRanks : public testing::TestWithParam<Golden> {};

TEST_P(GoldenRanks, OfAnyNumberGiveTheSameBytes) {
  const auto tokens = GetParam().answers().at("prompts").at("p33").at("tokens").get<std::vector<std::int32_t>>();
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

class GoldenConfigs : public testing::TestWithParam<Golden> {};

TEST_P(GoldenConfigs, OldAndNewSpellingsMeanTheSameModel) {
  const engine::ModelSpec old_spec = spec_of(GetParam().model / "config.json"), new_spec = spec_of(GetParam().model / "config.v5.json");
  const parallel::Graph old_graph = engine::family_of(old_spec.architecture).build(old_spec),
                        new_graph = engine::family_of(new_spec.architecture).build(new_spec);
  EXPECT_EQ(shown(old_graph), shown(new_graph));
  EXPECT_TRUE(old_graph.rotaries == new_graph.rotaries);
  EXPECT_EQ(old_spec.max_position_embeddings, new_spec.max_position_embeddings);
}

class GoldenRotary : public testing::TestWithParam<Golden> {};

/// The largest difference of cos and sin at positions 0 .. length - 1.
float rotary_difference(const parallel::Rotary& rotary, std::size_t length, const std::vector<float>& cosines,
                        const std::vector<float>& sines) {
  device::StepBatch batch;
  batch.sequences = {{.num_tokens = static_cast<std::uint32_t>(length), .prompt_length = static_cast<std::uint32_t>(length)}};
  engine::RotaryAngles angles;
  engine::angles_of_tokens(rotary, batch, angles);
  const std::size_t half = rotary.dim / 2, columns = cosines.size() / length;
  // The reference has the columns twice, or each twice in a row, or once.
  const bool doubled = columns == rotary.dim && half > 1 && cosines[columns] == cosines[columns + 1];
  std::vector<float> expected_cosines, expected_sines;
  for (std::size_t row = 0; row < length; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t at = row * columns + (doubled ? 2 * i : i);
      expected_cosines.push_back(cosines.at(at));
      expected_sines.push_back(sines.at(at));
    }
  }
  return std::max(test::largest_difference(angles.cosines, expected_cosines), test::largest_difference(angles.sines, expected_sines));
}

/// cos and sin of positions 0 .. 47, and of a sequence of 128.
TEST_P(GoldenRotary, TablesMatchTheReference) {
  const auto expected = engine::read_safetensors(GetParam().rotary);
  const engine::ModelSpec spec = spec_of(GetParam().model / "config.json");
  const parallel::Graph graph = engine::family_of(spec.architecture).build(spec);
  float largest = 0;
  std::size_t compared = 0;
  for (const parallel::Attention& attention : graph.attentions) {
    if (attention.rotary == parallel::kNone) continue;
    const std::string prefix = spec.local_rope && attention.window != 0 ? "rotary_emb_local." : "rotary_emb.";
    for (const std::size_t length : {48, 128}) {
      const std::string suffix = length == 128 ? ".len128" : "";
      const float difference =
          rotary_difference(graph.rotaries[attention.rotary], length, test::golden_values(*expected, prefix + "cos" + suffix),
                            test::golden_values(*expected, prefix + "sin" + suffix));
      EXPECT_LE(difference, kRotaryBound) << prefix << " of " << length;
      largest = std::max(largest, difference);
      ++compared;
    }
  }
  EXPECT_GE(compared, 2u);
  test::record_largest(GetParam(), "rotary_tables", largest);
}

/// Text in, text out, with the folder's own tokenizer.
TEST(GoldenText, GreedyAnswersAndTheirStreamsAreThoseOfTheReference) {
  const fs::path folder = test::golden_root() / "models" / "llama-gqa";
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(folder / "golden_text.json"));
  test::with_session(test::exact_setup(folder, 2), [&](engine::Session& session) {
    for (const nlohmann::json& one : golden.at("cases")) {
      const auto ids = session.tokenizer().encode(one.at("text").get<std::string>(), true);
      EXPECT_EQ(ids, one.at("ids").get<std::vector<std::int32_t>>());
      engine::Request request;
      request.prompt = ids;
      request.sampling.temperature = 0.0f;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = static_cast<std::uint32_t>(one.at("greedy").size());
      engine::Choice choice;
      session.engine().submit(std::move(request), [&](engine::Completion&& done) { choice = std::move(done.choices.at(0)); });
      while (session.engine().step()) {
      }
      EXPECT_EQ(choice.tokens, one["greedy"].get<std::vector<std::int32_t>>());
      std::string text;
      for (const nlohmann::json& piece : one.at("stream_skip_special")) text += piece.get<std::string>();
      EXPECT_EQ(choice.text, text);
    }
    EXPECT_GE(golden.at("cases").size(), 3u);
  });
}

std::vector<Golden> all_goldens() {
  std::vector<Golden> all = test::having("prompts", test::golden_folders());
  for (Golden& golden : test::golden_files()) all.push_back(std::move(golden));
  return all;
}

std::vector<Golden> folders_with(fs::path Golden::*file) {
  std::vector<Golden> found = test::golden_folders();
  std::erase_if(found, [&](const Golden& golden) { return !fs::exists(golden.*file); });
  return found;
}

std::string ranks_name(const testing::TestParamInfo<std::tuple<Golden, int>>& info) {
  return test::test_name(std::get<0>(info.param), std::get<1>(info.param));
}

std::string model_name(const testing::TestParamInfo<Golden>& info) { return test::test_name(info.param); }

INSTANTIATE_TEST_SUITE_P(Models, Goldens, testing::ValuesIn(test::with_ranks(all_goldens())), ranks_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenRanks, testing::ValuesIn(all_goldens()), model_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenHiddenStates, testing::ValuesIn(test::with_ranks(folders_with(&Golden::hidden))), ranks_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenConfigs, testing::ValuesIn(test::golden_folders()), model_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenRotary, testing::ValuesIn(folders_with(&Golden::rotary)), model_name);

TEST(GoldenSet, IsWhole) {
  EXPECT_GE(test::golden_folders().size(), 38u);
  EXPECT_GE(all_goldens().size(), 10u);
  EXPECT_GE(folders_with(&Golden::hidden).size(), 5u);
  EXPECT_GE(folders_with(&Golden::rotary).size(), 5u);
  // The models of the reference set that the program has no family for.
  for (const std::string& name : test::golden_folders_without_family()) ADD_FAILURE() << name;
}

}  // namespace
}  // namespace lockstep
