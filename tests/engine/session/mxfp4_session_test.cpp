// A whole mixture of experts in the MXFP4 form of its published checkpoints: beside the same numbers as floats, and as a GGUF file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/quantise/quantise_model.h"
#include "engine/weights/gguf.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHidden = 64, kInner = 512, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kExperts = 3, kVocabulary = 33, kLayers = 2;

/// [experts, rows, columns] with rows and columns changed.
std::vector<float> in_out(const std::vector<float>& values, std::size_t rows, std::size_t columns) {
  std::vector<float> turned(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t expert = i / (rows * columns), row = i / columns % rows, column = i % columns;
    turned[(expert * columns + column) * rows + row] = values[i];
  }
  return turned;
}

/// The model with its experts in MXFP4, and in F32.
class Mixture : public test::TwoFolders {
 public:
  Mixture() {
    add_floats("model.embed_tokens.weight", {kVocabulary, kHidden});
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const std::string module = "model.layers." + std::to_string(layer) + ".";
      add_floats(module + "input_layernorm.weight", {kHidden}, 1.0f);
      for (const auto& [name, heads] : {std::pair("q", kHeads), {"k", kKvHeads}, {"v", kKvHeads}}) {
        add_floats(module + "self_attn." + name + "_proj.weight", {heads * kHeadDim, kHidden});
        add_floats(module + "self_attn." + name + "_proj.bias", {heads * kHeadDim});
      }
      add_floats(module + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
      add_floats(module + "self_attn.o_proj.bias", {kHidden});
      add_floats(module + "self_attn.sinks", {kHeads}, 1.0f);
      add_floats(module + "post_attention_layernorm.weight", {kHidden}, 1.0f);
      add_floats(module + "mlp.router.weight", {kExperts, kHidden});
      add_floats(module + "mlp.router.bias", {kExperts});
      add_experts(module + "mlp.experts.gate_up_proj", 2 * kInner, kHidden);
      add_floats(module + "mlp.experts.gate_up_proj_bias", {kExperts, 2 * kInner});
      add_experts(module + "mlp.experts.down_proj", kHidden, kInner);
      add_floats(module + "mlp.experts.down_proj_bias", {kExperts, kHidden});
    }
    add_floats("model.norm.weight", {kHidden}, 1.0f);
    add_floats("lm_head.weight", {kVocabulary, kHidden});
    const nlohmann::json config =
        nlohmann::json::parse(R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
        "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": 33,
        "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4, "max_position_embeddings": 64, "rope_theta": 150000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 16,
                         "truncate": false}})");
    nlohmann::json packed = config;
    packed["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.layers.*.self_attn"}}};
    write(packed.dump(), config.dump());
  }
  const std::vector<float>& first_gate_up() const { return first_gate_up_; }

 private:
  void add_experts(const std::string& name, std::size_t rows, std::size_t columns) {
    const std::vector<float> values = test::add_mxfp4(packed_file_, name, kExperts, rows, columns, seed_++);
    plain_file_.add(name, "F32", {kExperts, columns, rows}, in_out(values, rows, columns));
    if (first_gate_up_.empty()) first_gate_up_ = values;
  }

  std::vector<float> first_gate_up_;
};

std::vector<std::vector<float>> logits(const test::RunSetup& setup) {
  std::vector<std::vector<float>> rows;
  test::with_session(setup, [&](engine::Session& session) { rows = test::prompt_logits(session, {3, 17, 8, 30, 1, 2, 5}); });
  return rows;
}

TEST(Mxfp4Session, IsTheModelOfItsNumbersOnAnyNumberOfRanks) {
  const Mixture folders;
  const auto expected = logits(test::exact_setup(folders.plain(), 1));
  ASSERT_EQ(expected.size(), 7u);
  EXPECT_NE(expected[0], expected[6]);
  std::vector<std::vector<float>> stored;
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_EQ(logits(test::exact_setup(folders.packed(), ranks)), expected) << ranks << " ranks";
    test::RunSetup as_stored = test::exact_setup(folders.packed(), ranks);
    as_stored.session.dtype = std::nullopt;
    const auto found = logits(as_stored);
    if (stored.empty()) stored = found;
    EXPECT_EQ(found, stored) << ranks << " ranks, as stored";
  }
  EXPECT_NE(stored, expected) << "activations are rounded to int8";
}

TEST(Mxfp4Session, BlocksGoIntoAGgufFileAsTheyAre) {
  const Mixture folders;
  const test::TemporaryFolder folder;
  const fs::path as_floats = folder.path() / "floats.gguf", smaller = folder.path() / "smaller.gguf";
  engine::quantise_model({.model = folders.packed(), .output = as_floats, .type = device::DType::kF32}, {});
  EXPECT_EQ(logits(test::exact_setup(as_floats, 2)), logits(test::exact_setup(folders.plain(), 1)));
  engine::quantise_model({.model = folders.packed(), .output = smaller, .type = device::DType::kQ8_0}, {});
  const engine::GgufFile file = engine::read_gguf(smaller);
  EXPECT_EQ(file.tensors->find("blk.1.ffn_down_exps.weight")->dtype, device::DType::kMXFP4);
  EXPECT_EQ(file.tensors->find("blk.0.attn_q.weight")->dtype, device::DType::kQ8_0);
  EXPECT_EQ(file.tensors->find("blk.0.ffn_up_exps.bias")->dtype, device::DType::kF32);
  for (const bool up : {false, true}) {
    const engine::StoredTensor& tensor = *file.tensors->find(up ? "blk.0.ffn_up_exps.weight" : "blk.0.ffn_gate_exps.weight");
    ASSERT_EQ(tensor.dtype, device::DType::kMXFP4);
    std::vector<std::byte> bytes(tensor.bytes);
    file.tensors->read(tensor, 0, bytes);
    std::vector<float> values(kExperts * kInner * kHidden), expected;
    device::dequantise(tensor.dtype, bytes, values);
    for (std::size_t row = 0; row < kExperts * kInner; ++row) {
      const float* from = &folders.first_gate_up()[(2 * row + (up ? 1 : 0)) * kHidden];
      expected.insert(expected.end(), from, from + kHidden);
    }
    EXPECT_EQ(values, expected) << up;
  }
}

}  // namespace
}  // namespace lockstep
