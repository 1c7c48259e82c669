// A model of each family as a Hugging Face folder and as the GGUF file that is made of it: the same bytes of logits, at several numbers of
// ranks. Weights are made up from the graph of each configuration, so that the tree needs none. The names and shapes of tensors in the file
// are compared with what the field's files have (llama.cpp), so that writer and reader cannot agree on something else.

#include <algorithm>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "engine/quantise/quantise_model.h"
#include "engine/weights/gguf.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/weights/support.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using engine::testing_support::data_path;
using engine::testing_support::error_of;
using engine::testing_support::file_bytes;
using engine::FloatTensor;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

using Shape = std::vector<std::size_t>;

struct Form {
  std::string name;
  std::string folder;        // of the tree's models: its configuration
  json changes;              // of the configuration
  std::string architecture;  // general.architecture
  std::map<std::string, Shape> tensors;  // some of the file
  std::vector<std::string> absent = {};
  std::map<std::string, json> keys = {};
};

void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

std::vector<Form> forms() {
  const json no_changes = json::object();
  const json longrope = {{"type", "longrope"},
                         {"short_factor", {1.0, 1.25, 1.5, 2.0}},
                         {"long_factor", {1.0, 2.0, 4.0, 8.0}}};
  return {
      {"llama", "llama-gqa", no_changes, "llama", {{"blk.2.attn_k.weight", {24, 72}}, {"output.weight", {257, 72}}}},
      {"llama_biases", "llama-bias", no_changes, "llama", {{"blk.0.attn_q.bias", {48}}, {"blk.0.ffn_gate.bias", {112}}}},
      {"llama3_rotary", "llama3-rope", no_changes, "llama", {{"rope_freqs.weight", {8}}}},
      {"llama_linear", "llama-linear", no_changes, "llama", {}, {}, {{"llama.rope.scaling.type", "linear"}}},
      {"llama_yarn", "llama-yarn", no_changes, "llama", {}, {}, {{"llama.rope.scaling.type", "yarn"}}},
      {"mistral", "mistral-sw", no_changes, "llama", {}, {"llama.attention.sliding_window_pattern"}, {}},
      {"mixtral",
       "mixtral",
       no_changes,
       "llama",
       {{"blk.1.ffn_gate_inp.weight", {4, 48}},
        {"blk.1.ffn_gate_exps.weight", {4, 64, 48}},
        {"blk.1.ffn_up_exps.weight", {4, 64, 48}},
        {"blk.1.ffn_down_exps.weight", {4, 48, 64}}},
       {},
       {{"llama.expert_count", 4}, {"llama.expert_used_count", 2}}},
      {"qwen2", "qwen2", no_changes, "qwen2", {{"blk.0.attn_v.bias", {16}}}},
      {"qwen3", "qwen3", no_changes, "qwen3", {{"blk.0.attn_q_norm.weight", {16}}}},
      {"qwen2_moe",
       "qwen2-moe",
       no_changes,
       "qwen2moe",
       {{"blk.0.ffn_down_exps.weight", {5, 48, 40}},
        {"blk.0.ffn_gate_shexp.weight", {72, 48}},
        {"blk.0.ffn_down_shexp.weight", {48, 72}},
        {"blk.0.ffn_gate_inp_shexp.weight", {48}}},
       {},
       {{"qwen2moe.expert_feed_forward_length", 40}, {"qwen2moe.expert_shared_feed_forward_length", 72}}},
      {"qwen3_moe", "qwen3-moe", no_changes, "qwen3moe", {{"blk.0.ffn_up_exps.weight", {6, 40, 48}}, {"blk.1.ffn_up.weight", {112, 48}}}},
      {"gpt2",
       "gpt2",
       no_changes,
       "gpt2",
       {{"position_embd.weight", {192, 64}}, {"blk.0.attn_qkv.weight", {192, 64}}, {"blk.0.ffn_up.weight", {256, 64}}, {"blk.0.ffn_norm.bias", {64}}}},
      {"gemma", "gemma", no_changes, "gemma", {{"blk.0.attn_norm.weight", {48}}}, {"output.weight"}},
      {"gemma2",
       "gemma2",
       {{"query_pre_attn_scalar", 16}},
       "gemma2",
       {{"blk.0.post_attention_norm.weight", {48}}, {"blk.0.ffn_norm.weight", {48}}, {"blk.0.post_ffw_norm.weight", {48}}},
       {"gemma2.attention.sliding_window_pattern"},
       {{"gemma2.attention.sliding_window", 16}, {"gemma2.attn_logit_softcapping", 20}, {"gemma2.final_logit_softcapping", 15}}},
      {"gemma3",
       "gemma3",
       {{"rope_local_base_freq", 20000.0}},
       "gemma3",
       {{"blk.0.attn_k_norm.weight", {16}}},
       {},
       {{"gemma3.rope.freq_base_swa", 20000}, {"gemma3.rope.scaling.factor", 8}}},
      {"phi",
       "phi",
       no_changes,
       "phi2",
       {{"output.bias", {131}}, {"blk.0.attn_q.bias", {64}}, {"blk.0.attn_norm.bias", {64}}},
       {"blk.0.ffn_norm.weight"},
       {{"phi2.rope.dimension_count", 8}}},
      {"phi3", "phi3", no_changes, "phi3", {{"blk.0.attn_qkv.weight", {80, 48}}, {"blk.0.ffn_up.weight", {224, 48}}}, {"blk.0.ffn_gate.weight"}},
      {"phi3_longrope",
       "phi3",
       {{"rope_scaling", longrope}, {"original_max_position_embeddings", 32}},
       "phi3",
       {{"rope_factors_long.weight", {4}}, {"rope_factors_short.weight", {4}}},
       {},
       {{"phi3.rope.scaling.original_context_length", 32}}},
      {"olmo2",
       "olmo2",
       no_changes,
       "olmo2",
       {{"blk.0.attn_q_norm.weight", {48}}, {"blk.0.attn_k_norm.weight", {16}}, {"blk.0.post_ffw_norm.weight", {48}}},
       {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}},
      {"granite",
       "granite",
       no_changes,
       "granite",
       {},
       {},
       {{"granite.logit_scale", 2}, {"granite.embedding_scale", 3}}},
      {"smollm3", "smollm3", no_changes, "smollm3", {}},
      {"gpt_neox",
       "gpt-neox",
       no_changes,
       "gptneox",
       {{"blk.0.attn_qkv.weight", {192, 64}}, {"blk.0.attn_qkv.bias", {192}}, {"blk.0.ffn_norm.weight", {64}}},
       {},
       {{"gptneox.use_parallel_residual", true}, {"gptneox.rope.dimension_count", 4}}},
      {"gpt_neox_in_turn", "gpt-neox", {{"use_parallel_residual", false}}, "gptneox", {}, {}, {{"gptneox.use_parallel_residual", false}}},
      {"starcoder2", "starcoder2", no_changes, "starcoder2", {{"blk.0.ffn_down.bias", {48}}}, {"blk.0.ffn_gate.weight"}},
      {"stablelm", "stablelm", no_changes, "stablelm", {{"blk.0.ffn_norm.bias", {64}}}},
      {"stablelm_side_by_side", "stablelm", {{"use_parallel_residual", true}}, "stablelm", {}, {"blk.0.ffn_norm.weight"}},
      {"cohere", "cohere", no_changes, "command-r", {}, {"blk.0.attn_norm.bias", "output.weight"}, {{"command-r.logit_scale", 0.25}}},
      {"glm4",
       "glm4",
       no_changes,
       "glm4",
       {{"blk.0.ffn_up.weight", {224, 48}}, {"blk.0.post_attention_norm.weight", {48}}, {"blk.0.post_ffw_norm.weight", {48}}}},
      {"bloom", "bloom", no_changes, "bloom", {{"token_embd_norm.bias", {48}}, {"blk.0.attn_qkv.weight", {144, 48}}}},
  };
}

/// A folder with a configuration and weights that are made up: every tensor that the graph wants.
fs::path made_up_model(const test::TemporaryFolder& folder, const std::string& name, const json& changes) {
  json config = json::parse(file_bytes(data_path("models/" + name + "/config.json")));
  config.update(changes);
  const fs::path path = folder.path() / "model";
  fs::create_directory(path);
  std::ofstream(path / "config.json") << config;
  const engine::ModelSpec spec = engine::spec_from_hf_config(config.dump(), name);
  std::map<std::string, Shape> shapes;
  for (const parallel::TensorDecl& tensor : engine::family_of(spec.architecture).build(spec).tensors)
    shapes.emplace(tensor.file_name(), tensor.file_shape());
  std::vector<std::vector<float>> values;
  std::vector<FloatTensor> tensors;
  values.reserve(shapes.size());
  std::uint32_t state = 1;
  for (const auto& [tensor, shape] : shapes) {
    std::size_t count = 1;
    for (const std::size_t axis : shape) count *= axis;
    values.emplace_back(count);
    for (float& value : values.back()) {
      state = state * 1664525u + 1013904223u;
      value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * 0.5f;
    }
    tensors.push_back({tensor, shape, values.back()});
  }
  engine::write_safetensors(path / "model.safetensors", tensors);
  return path;
}

fs::path as_gguf(const fs::path& model) {
  const fs::path output = model.parent_path() / "model.gguf";
  engine::quantise_model({.model = model, .output = output, .type = device::DType::kF32}, {});
  return output;
}

std::vector<std::vector<float>> logits_of(const fs::path& model, int ranks) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 40; ++i) tokens.push_back((i * 37 + 5) % 97);
  std::vector<std::vector<float>> rows;
  test::with_session(test::exact_setup(model, ranks), [&](engine::Session& session) { rows = test::prompt_logits(session, tokens); });
  return rows;
}

json value_of(const engine::GgufMetadata& metadata, const std::string& key, const json& like) {
  if (like.is_string()) return *metadata.text(key);
  if (like.is_boolean()) return *metadata.flag(key);
  return *metadata.number(key);
}

class GgufForms : public testing::TestWithParam<Form> {};

TEST_P(GgufForms, AFolderAndTheFileMadeOfItGiveTheSameLogits) {
  const test::TemporaryFolder folder;
  const fs::path model = made_up_model(folder, GetParam().folder, GetParam().changes);
  const fs::path file = as_gguf(model);
  const auto expected = logits_of(model, 1);
  ASSERT_EQ(expected.size(), 40u);
  for (const int ranks : {1, 3}) EXPECT_TRUE(logits_of(file, ranks) == expected) << ranks << " ranks";
}

TEST_P(GgufForms, TensorsAndKeysAreThoseOfTheField) {
  const test::TemporaryFolder folder;
  const engine::GgufFile file = engine::read_gguf(as_gguf(made_up_model(folder, GetParam().folder, GetParam().changes)));
  EXPECT_EQ(*file.metadata.text("general.architecture"), GetParam().architecture);
  for (const auto& [name, shape] : GetParam().tensors) {
    const engine::StoredTensor* found = file.tensors->find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, shape) << name;
  }
  for (const std::string& name : GetParam().absent) EXPECT_FALSE(file.tensors->contains(name) || file.metadata.contains(name)) << name;
  for (const auto& [key, value] : GetParam().keys) {
    ASSERT_TRUE(file.metadata.contains(key)) << key;
    EXPECT_EQ(value_of(file.metadata, key, value), value) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufForms, testing::ValuesIn(forms()),
                         [](const testing::TestParamInfo<Form>& info) { return info.param.name; });

TEST(GgufForm, WhatAFileCannotSayIsRefused) {
  struct Case {
    std::string folder;
    json changes;
    std::string what;
  };
  for (const Case& each : {Case{"opt", json::object(), "there are no such files"},
                           Case{"llama-dynamic", json::object(), "cannot say its rotary embedding"},
                           Case{"gemma2", json::object(), "cannot say its scale, window, soft cap, slopes or rotation"},
                           Case{"smollm3", {{"no_rope_layers", {1, 0, 1, 0}}}, "cannot say its scale, window, soft cap, slopes or rotation"},
                           Case{"gpt2", {{"activation_function", "relu"}}, "cannot say its activation function"},
                           Case{"qwen3-moe", {{"norm_topk_prob", false}}, "cannot say its choice of experts"}}) {
    const test::TemporaryFolder folder;
    const fs::path model = made_up_model(folder, each.folder, each.changes);
    EXPECT_THAT(error_of([&] { as_gguf(model); }), AllOf(HasSubstr("config.json: "), HasSubstr(each.what))) << each.folder;
    EXPECT_FALSE(fs::exists(model.parent_path() / "model.gguf"));
    EXPECT_FALSE(fs::exists(model.parent_path() / "model.gguf.partial"));
  }
}

}  // namespace
}  // namespace lockstep
