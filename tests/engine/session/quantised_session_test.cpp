// Whole models from quantised Hugging Face checkpoints, on several ranks.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/quantised_folder.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::GroupedMatrix;
using test::SafetensorsBuilder;

constexpr std::size_t kHidden = 128, kInner = 512, kVocabulary = 33, kLayers = 2;

/// How q, k and v, and gate and up, are stored.
enum class Projections { kApart, kJoined, kByHead };

json config(const json& quantisation, Projections projections) {
  json config = json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
          "max_position_embeddings": 64, "torch_dtype": "float16"})");
  config["hidden_size"] = kHidden;
  config["intermediate_size"] = kInner;
  config["num_hidden_layers"] = kLayers;
  config["vocab_size"] = kVocabulary;
  if (projections == Projections::kJoined) config["architectures"] = {"Phi3ForCausalLM"}, config["model_type"] = "phi3";
  if (projections == Projections::kByHead) {
    config["architectures"] = {"GPTNeoXForCausalLM"}, config["model_type"] = "gpt_neox";
    config["hidden_act"] = "gelu";
    config["tie_word_embeddings"] = false;
  }
  if (!quantisation.is_null()) config["quantization_config"] = quantisation;
  return config;
}

/// How a matrix is put into a file, and as what it has to come out of it again.
using AddMatrix = std::function<std::vector<float>(SafetensorsBuilder&, const std::string& module, std::size_t rows, std::size_t columns,
                                                   std::uint32_t seed)>;

/// A model whose linear layers `add` writes, beside the same model in F32.
class QuantisedModel : public test::TwoFolders {
 public:
  QuantisedModel(const json& quantisation, const AddMatrix& add, Projections projections = Projections::kApart) {
    const auto matrix = [&](const std::string& module, std::size_t rows, std::size_t columns) {
      plain_file_.add(module + ".weight", "F32", {rows, columns}, add(packed_file_, module, rows, columns, seed_++));
    };
    if (projections == Projections::kByHead) {
      add_by_head(matrix);
    } else {
      add_llama(matrix, projections == Projections::kJoined);
    }
    write(config(quantisation, projections).dump(), config(nullptr, projections).dump());
  }

 private:
  template <class Matrix>
  void add_llama(const Matrix& matrix, bool joined) {
    add_floats("model.embed_tokens.weight", {kVocabulary, kHidden});
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const std::string module = "model.layers." + std::to_string(layer) + ".";
      add_floats(module + "input_layernorm.weight", {kHidden}, 1.0f);
      if (joined) {
        matrix(module + "self_attn.qkv_proj", 2 * kHidden, kHidden);
      } else {
        matrix(module + "self_attn.q_proj", kHidden, kHidden);
        matrix(module + "self_attn.k_proj", kHidden / 2, kHidden);
        matrix(module + "self_attn.v_proj", kHidden / 2, kHidden);
      }
      matrix(module + "self_attn.o_proj", kHidden, kHidden);
      add_floats(module + "post_attention_layernorm.weight", {kHidden}, 1.0f);
      if (joined) {
        matrix(module + "mlp.gate_up_proj", 2 * kInner, kHidden);
      } else {
        matrix(module + "mlp.gate_proj", kInner, kHidden);
        matrix(module + "mlp.up_proj", kInner, kHidden);
      }
      matrix(module + "mlp.down_proj", kHidden, kInner);
    }
    add_floats("model.norm.weight", {kHidden}, 1.0f);
    add_floats("lm_head.weight", {kVocabulary, kHidden});
  }

  /// q, k and v of each head in turn, in one tensor.
  template <class Matrix>
  void add_by_head(const Matrix& matrix) {
    const auto norm = [&](const std::string& module) {
      add_floats(module + ".weight", {kHidden}, 1.0f);
      add_floats(module + ".bias", {kHidden});
    };
    add_floats("gpt_neox.embed_in.weight", {kVocabulary, kHidden});
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const std::string module = "gpt_neox.layers." + std::to_string(layer) + ".";
      norm(module + "input_layernorm");
      norm(module + "post_attention_layernorm");
      matrix(module + "attention.query_key_value", 3 * kHidden, kHidden);
      add_floats(module + "attention.query_key_value.bias", {3 * kHidden});
      matrix(module + "attention.dense", kHidden, kHidden);
      add_floats(module + "attention.dense.bias", {kHidden});
      matrix(module + "mlp.dense_h_to_4h", kInner, kHidden);
      add_floats(module + "mlp.dense_h_to_4h.bias", {kInner});
      matrix(module + "mlp.dense_4h_to_h", kHidden, kInner);
      add_floats(module + "mlp.dense_4h_to_h.bias", {kHidden});
    }
    norm("gpt_neox.final_layer_norm");
    add_floats("embed_out.weight", {kVocabulary, kHidden});
  }
};

std::vector<std::vector<float>> logits(const test::RunSetup& setup) {
  std::vector<std::vector<float>> rows;
  test::with_session(setup, [&](engine::Session& session) { rows = test::prompt_logits(session, {3, 17, 8, 30, 1, 2, 5}); });
  return rows;
}

test::RunSetup as_stored(const fs::path& model, int ranks) {
  test::RunSetup setup = test::exact_setup(model, ranks);
  setup.session.dtype = std::nullopt;
  return setup;
}

/// In fp32 the packed model is the plain one, to the bit; as it is stored it is the same on any number of ranks.
void expect_same_model(const test::TwoFolders& folders) {
  const auto expected = logits(test::exact_setup(folders.plain(), 1));
  ASSERT_EQ(expected.size(), 7u);
  EXPECT_NE(expected[0], expected[6]);
  std::vector<std::vector<float>> stored;
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(logits(test::exact_setup(folders.packed(), ranks)), expected) << ranks << " ranks";
    const auto found = logits(as_stored(folders.packed(), ranks));
    if (stored.empty()) stored = found;
    EXPECT_EQ(found, stored) << ranks << " ranks, as stored";
  }
}

TEST(QuantisedSession, GptqIsTheSameModelOnAnyNumberOfRanks) {
  for (const bool symmetric : {true, false}) {
    for (const bool any_order : {false, true}) {
      const json quantisation{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"sym", symmetric}, {"desc_act", any_order}};
      expect_same_model(QuantisedModel(quantisation, [&](SafetensorsBuilder& file, const std::string& module, std::size_t rows,
                                                         std::size_t columns, std::uint32_t seed) {
        const GroupedMatrix matrix = test::random_grouped(rows, columns, 4, 64, symmetric, any_order, seed);
        test::add_gptq(file, module, matrix);
        return matrix.values();
      }));
    }
  }
}

TEST(QuantisedSession, AwqIsTheSameModelOnAnyNumberOfRanks) {
  const json quantisation{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "GEMM"}};
  expect_same_model(QuantisedModel(
      quantisation, [](SafetensorsBuilder& file, const std::string& module, std::size_t rows, std::size_t columns, std::uint32_t seed) {
        const GroupedMatrix matrix = test::random_grouped(rows, columns, 4, 32, false, false, seed);
        test::add_awq(file, module, matrix);
        return matrix.values();
      }));
}

TEST(QuantisedSession, ProjectionsInOneTensorAreCutOutOfIt) {
  const auto add = [](bool awq) -> AddMatrix {
    return [awq](SafetensorsBuilder& file, const std::string& module, std::size_t rows, std::size_t columns, std::uint32_t seed) {
      const GroupedMatrix matrix = test::random_grouped(rows, columns, 4, 64, false, !awq, seed);
      awq ? test::add_awq(file, module, matrix) : test::add_gptq(file, module, matrix);
      return matrix.values();
    };
  };
  const json gptq{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"sym", false}, {"desc_act", true}};
  const json awq{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"zero_point", true}, {"version", "GEMM"}};
  expect_same_model(QuantisedModel(gptq, add(false), Projections::kJoined));
  expect_same_model(QuantisedModel(awq, add(true), Projections::kJoined));
  expect_same_model(QuantisedModel(gptq, add(false), Projections::kByHead));
  expect_same_model(QuantisedModel(awq, add(true), Projections::kByHead));
}

TEST(QuantisedSession, Float8InBlocksIsTheSameModelOnAnyNumberOfRanks) {
  const json quantisation{{"quant_method", "fp8"}, {"weight_block_size", {48, 32}}};
  expect_same_model(QuantisedModel(
      quantisation, [](SafetensorsBuilder& file, const std::string& module, std::size_t rows, std::size_t columns, std::uint32_t seed) {
        // Codes of -1, -0.5, 0.5, 1 and 0, which are the same numbers in fp32 whatever a table says.
        const std::vector<std::pair<unsigned char, float>> codes{{0xB8, -1.0f}, {0xB0, -0.5f}, {0x30, 0.5f}, {0x38, 1.0f}, {0x00, 0.0f}};
        const std::size_t block_rows = (rows + 47) / 48, block_columns = columns / 32;
        std::vector<float> scales, values;
        for (std::size_t i = 0; i < block_rows * block_columns; ++i) scales.push_back(0.05f + 0.01f * static_cast<float>((i + seed) % 11));
        std::string bytes;
        std::uint32_t state = seed;
        for (std::size_t row = 0; row < rows; ++row) {
          for (std::size_t column = 0; column < columns; ++column) {
            state = state * 1664525u + 1013904223u;
            const auto& [code, value] = codes[(state >> 16) % codes.size()];
            bytes += static_cast<char>(code);
            values.push_back(value * scales[row / 48 * block_columns + column / 32]);
          }
        }
        file.add(module + ".weight", "F8_E4M3", {rows, columns}, bytes);
        file.add(module + ".weight_scale_inv", "F32", {block_rows, block_columns}, scales);
        return values;
      }));
}

}  // namespace
}  // namespace lockstep
