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
using engine::FloatTensor;
using engine::testing_support::data_path;
using engine::testing_support::error_of;
using engine::testing_support::file_bytes;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

using Shape = std::vector<std::size_t>;

/// `folder`: of the tree's models, for its configuration; `changes`: of that. `tensors`, `keys`: some of those that the file has; `absent`:
/// tensors and keys that it has not.
constexpr const char* kForms = R"([
  {"name": "llama", "folder": "llama-gqa", "architecture": "llama", "tensors": {"blk.2.attn_k.weight": [24, 72], "output.weight": [257, 72]}},
  {"name": "llama_biases", "folder": "llama-bias", "architecture": "llama", "tensors": {"blk.0.attn_q.bias": [64], "blk.0.ffn_gate.bias": [160]}},
  {"name": "llama3_rotary", "folder": "llama3-rope", "architecture": "llama", "tensors": {"rope_freqs.weight": [8]}},
  {"name": "llama_linear", "folder": "llama-linear", "architecture": "llama", "keys": {"llama.rope.scaling.type": "linear"}},
  {"name": "llama_yarn", "folder": "llama-yarn", "architecture": "llama", "keys": {"llama.rope.scaling.type": "yarn"}},
  {"name": "mistral", "folder": "mistral-sw", "architecture": "llama", "absent": ["llama.attention.sliding_window_pattern"]},
  {"name": "mixtral", "folder": "mixtral", "architecture": "llama", "keys": {"llama.expert_count": 4, "llama.expert_used_count": 2},
   "tensors": {"blk.1.ffn_gate_inp.weight": [4, 48], "blk.1.ffn_gate_exps.weight": [4, 64, 48], "blk.1.ffn_up_exps.weight": [4, 64, 48],
               "blk.1.ffn_down_exps.weight": [4, 48, 64]}},
  {"name": "qwen2", "folder": "qwen2", "architecture": "qwen2", "tensors": {"blk.0.attn_v.bias": [32]}},
  {"name": "qwen3", "folder": "qwen3", "architecture": "qwen3", "tensors": {"blk.0.attn_q_norm.weight": [32]}},
  {"name": "qwen2_moe", "folder": "qwen2-moe", "architecture": "qwen2moe",
   "keys": {"qwen2moe.expert_feed_forward_length": 40, "qwen2moe.expert_shared_feed_forward_length": 72},
   "tensors": {"blk.0.ffn_down_exps.weight": [5, 48, 40], "blk.0.ffn_gate_shexp.weight": [72, 48], "blk.0.ffn_down_shexp.weight": [48, 72],
               "blk.0.ffn_gate_inp_shexp.weight": [48]}},
  {"name": "qwen3_moe", "folder": "qwen3-moe", "architecture": "qwen3moe",
   "tensors": {"blk.0.ffn_up_exps.weight": [6, 40, 48], "blk.1.ffn_up.weight": [112, 48]}},
  {"name": "gpt2", "folder": "gpt2", "architecture": "gpt2",
   "tensors": {"position_embd.weight": [192, 64], "blk.0.attn_qkv.weight": [192, 64], "blk.0.ffn_up.weight": [256, 64], "blk.0.ffn_norm.bias": [64]}},
  {"name": "gemma", "folder": "gemma", "architecture": "gemma", "tensors": {"blk.0.attn_norm.weight": [48]}, "absent": ["output.weight"]},
  {"name": "gemma2", "folder": "gemma2", "architecture": "gemma2", "changes": {"query_pre_attn_scalar": 16},
   "keys": {"gemma2.attention.sliding_window": 16, "gemma2.attn_logit_softcapping": 20, "gemma2.final_logit_softcapping": 15},
   "tensors": {"blk.0.post_attention_norm.weight": [48], "blk.0.ffn_norm.weight": [48], "blk.0.post_ffw_norm.weight": [48]},
   "absent": ["gemma2.attention.sliding_window_pattern"]},
  {"name": "gemma3", "folder": "gemma3", "architecture": "gemma3", "changes": {"rope_local_base_freq": 20000.0},
   "keys": {"gemma3.rope.freq_base_swa": 20000, "gemma3.rope.scaling.factor": 8}, "tensors": {"blk.0.attn_k_norm.weight": [16]}},
  {"name": "phi", "folder": "phi", "architecture": "phi2", "keys": {"phi2.rope.dimension_count": 8},
   "tensors": {"output.bias": [131], "blk.0.attn_q.bias": [64], "blk.0.attn_norm.bias": [64]}, "absent": ["blk.0.ffn_norm.weight"]},
  {"name": "phi3", "folder": "phi3", "architecture": "phi3", "absent": ["blk.0.ffn_gate.weight"],
   "tensors": {"blk.0.attn_qkv.weight": [80, 48], "blk.0.ffn_up.weight": [224, 48]}},
  {"name": "phi3_longrope", "folder": "phi3", "architecture": "phi3",
   "changes": {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]},
               "original_max_position_embeddings": 32},
   "keys": {"phi3.rope.scaling.original_context_length": 32},
   "tensors": {"rope_factors_long.weight": [4], "rope_factors_short.weight": [4]}},
  {"name": "olmo2", "folder": "olmo2", "architecture": "olmo2", "absent": ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"],
   "tensors": {"blk.0.attn_q_norm.weight": [48], "blk.0.attn_k_norm.weight": [16], "blk.0.post_ffw_norm.weight": [48]}},
  {"name": "granite", "folder": "granite", "architecture": "granite", "keys": {"granite.logit_scale": 2, "granite.embedding_scale": 3}},
  {"name": "smollm3", "folder": "smollm3", "architecture": "smollm3"},
  {"name": "gpt_neox", "folder": "gpt-neox", "architecture": "gptneox",
   "keys": {"gptneox.use_parallel_residual": true, "gptneox.rope.dimension_count": 4},
   "tensors": {"blk.0.attn_qkv.weight": [192, 64], "blk.0.attn_qkv.bias": [192], "blk.0.ffn_norm.weight": [64]}},
  {"name": "gpt_neox_in_turn", "folder": "gpt-neox", "architecture": "gptneox", "changes": {"use_parallel_residual": false},
   "keys": {"gptneox.use_parallel_residual": false}},
  {"name": "starcoder2", "folder": "starcoder2", "architecture": "starcoder2", "tensors": {"blk.0.ffn_down.bias": [48]},
   "absent": ["blk.0.ffn_gate.weight"]},
  {"name": "stablelm", "folder": "stablelm", "architecture": "stablelm", "tensors": {"blk.0.ffn_norm.bias": [64]}},
  {"name": "stablelm_side_by_side", "folder": "stablelm", "architecture": "stablelm", "changes": {"use_parallel_residual": true},
   "absent": ["blk.0.ffn_norm.weight"]},
  {"name": "cohere", "folder": "cohere", "architecture": "command-r", "keys": {"command-r.logit_scale": 0.25},
   "absent": ["blk.0.attn_norm.bias", "output.weight"]},
  {"name": "cohere_head_norms", "folder": "cohere", "architecture": "command-r", "changes": {"use_qk_norm": true},
   "tensors": {"blk.0.attn_q_norm.weight": [6, 8], "blk.0.attn_k_norm.weight": [2, 8]}},
  {"name": "stablelm_head_norms", "folder": "stablelm", "architecture": "stablelm", "changes": {"qk_layernorm": true},
   "tensors": {"blk.0.attn_q_norm.weight": [4, 16], "blk.0.attn_k_norm.weight": [2, 16]}},
  {"name": "glm4", "folder": "glm4", "architecture": "glm4",
   "tensors": {"blk.0.ffn_up.weight": [224, 48], "blk.0.post_attention_norm.weight": [48], "blk.0.post_ffw_norm.weight": [48]}},
  {"name": "gpt_oss", "folder": "gpt-oss", "architecture": "gpt-oss",
   "keys": {"gpt-oss.attention.sliding_window": 16, "gpt-oss.expert_feed_forward_length": 32, "gpt-oss.rope.scaling.type": "yarn"},
   "tensors": {"blk.0.attn_sinks.weight": [6], "blk.0.ffn_gate_exps.weight": [4, 32, 48], "blk.0.ffn_gate_exps.bias": [4, 32],
               "blk.0.ffn_up_exps.bias": [4, 32], "blk.1.ffn_down_exps.weight": [4, 48, 32], "blk.1.ffn_down_exps.bias": [4, 48],
               "blk.0.ffn_gate_inp.bias": [4], "blk.0.attn_output.bias": [48], "blk.0.post_attention_norm.weight": [48]},
   "absent": ["blk.0.ffn_norm.weight", "gpt-oss.attention.sliding_window_pattern"]},
  {"name": "bloom", "folder": "bloom", "architecture": "bloom", "tensors": {"token_embd_norm.bias": [48], "blk.0.attn_qkv.weight": [144, 48]}}
])";

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const json& form : json::parse(kForms)) all.push_back(form.at("name"));
  return all;
}

json form_of(const std::string& name) {
  for (const json& form : json::parse(kForms))
    if (form.at("name") == name) return form;
  throw std::invalid_argument(name);
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

class GgufForms : public testing::TestWithParam<std::string> {
 protected:
  fs::path model() const { return made_up_model(folder_, form_.at("folder"), form_.value("changes", json::object())); }

  json form_ = form_of(GetParam());
  test::TemporaryFolder folder_;
};

TEST_P(GgufForms, AFolderAndTheFileMadeOfItGiveTheSameLogits) {
  const fs::path folder = model();
  const fs::path file = as_gguf(folder);
  const auto expected = logits_of(folder, 1);
  ASSERT_EQ(expected.size(), 40u);
  for (const int ranks : {1, 3}) EXPECT_TRUE(logits_of(file, ranks) == expected) << ranks << " ranks";
}

TEST_P(GgufForms, TensorsAndKeysAreThoseOfTheField) {
  const engine::GgufFile file = engine::read_gguf(as_gguf(model()));
  EXPECT_EQ(*file.metadata.text("general.architecture"), form_.at("architecture"));
  const json tensors = form_.value("tensors", json::object()), keys = form_.value("keys", json::object());
  for (const auto& [name, shape] : tensors.items()) {
    const engine::StoredTensor* found = file.tensors->find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(json(found->shape), shape) << name;
  }
  for (const std::string name : form_.value("absent", json::array()))
    EXPECT_FALSE(file.tensors->contains(name) || file.metadata.contains(name)) << name;
  for (const auto& [key, value] : keys.items()) {
    ASSERT_TRUE(file.metadata.contains(key)) << key;
    EXPECT_EQ(value_of(file.metadata, key, value), value) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufForms, testing::ValuesIn(names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(GgufForm, WhatAFileCannotSayIsRefused) {
  struct Case {
    const char* folder;
    const char* changes;
    const char* what;
  };
  for (const Case& each :
       {Case{"opt", "{}", "there are no such files"}, Case{"llama-dynamic", "{}", "cannot say its rotary embedding"},
        Case{"phi", R"({"qk_layernorm": true})", "cannot say its layers"},
        Case{"gemma2", "{}", "cannot say its scale, window, soft cap, slopes or rotation"},
        Case{"smollm3", R"({"no_rope_layers": [1, 0, 1, 0]})", "cannot say its scale, window, soft cap, slopes or rotation"},
        Case{"gpt2", R"({"activation_function": "relu"})", "cannot say its activation function"},
        Case{"qwen3-moe", R"({"norm_topk_prob": false})", "cannot say its choice of experts"},
        Case{"gpt-oss", R"({"swiglu_limit": 6.0})", "cannot say its activation function or its limit"}}) {
    const test::TemporaryFolder folder;
    const fs::path model = made_up_model(folder, each.folder, json::parse(each.changes));
    EXPECT_THAT(error_of([&] { as_gguf(model); }), AllOf(HasSubstr("config.json: "), HasSubstr(each.what))) << each.folder;
    EXPECT_FALSE(fs::exists(model.parent_path() / "model.gguf"));
    EXPECT_FALSE(fs::exists(model.parent_path() / "model.gguf.partial"));
  }
}

}  // namespace
}  // namespace lockstep
