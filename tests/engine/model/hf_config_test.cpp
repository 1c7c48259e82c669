#include "engine/model/hf_config.h"

#include <nlohmann/json.hpp>

#include "tests/engine/weights/support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json llama() {
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 176, "vocab_size": 257, "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rope_theta": 10000.0, "torch_dtype": "bfloat16"})");
}

ModelSpec spec_of(const json& config) { return spec_from_hf_config(config.dump(), "config.json"); }

/// The specification with one member changed, or without it if `value` is discarded.
ModelSpec spec_with(const char* key, const json& value) {
  json config = llama();
  config[key] = value;
  return spec_of(config);
}

ModelSpec spec_without(const char* key) {
  json config = llama();
  config.erase(key);
  return spec_of(config);
}

std::string error_with(const char* key, const json& value) {
  const std::string error = error_of([&] { spec_with(key, value); });
  EXPECT_THAT(error, StartsWith("config.json: ")) << "every error names the file";
  return error;
}

TEST(HfConfig, ReadsTheSizesOfALlama) {
  const ModelSpec spec = spec_of(llama());
  EXPECT_EQ(spec.architecture, "llama");
  EXPECT_EQ(spec.hidden_size, 72u);
  EXPECT_EQ(spec.num_layers, 3u);
  EXPECT_EQ(spec.num_heads, 9u);
  EXPECT_EQ(spec.num_kv_heads, 3u);
  EXPECT_EQ(spec.head_dim, 8u);
  EXPECT_EQ(spec.intermediate_size, 176u);
  EXPECT_EQ(spec.vocab_size, 257u);
  EXPECT_EQ(spec.max_position_embeddings, 256u);
  EXPECT_EQ(spec.norm.eps, 1e-5f);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.rope.rotary_dim, 8u);
  EXPECT_EQ(spec.bos_id, 1);
  EXPECT_EQ(spec.pad_id, 0);
  EXPECT_THAT(spec.eos_ids, ElementsAre(2));
  EXPECT_FALSE(spec.attention_bias || spec.attention_output_bias || spec.mlp_bias || spec.tie_word_embeddings ||
               spec.rotary_pairs_interleaved);
}

TEST(HfConfig, TheTwoWaysToWriteAConfigurationMeanTheSame) {
  const std::string folder = data_path("models/llama-gqa").string();
  const ModelSpec old = spec_from_hf_config(file_bytes(folder + "/config.json"), "a");
  const ModelSpec recent = spec_from_hf_config(file_bytes(folder + "/config.v5.json"), "b");
  EXPECT_EQ(old.rope.theta, recent.rope.theta);
  EXPECT_EQ(old.head_dim, recent.head_dim);
  json config = llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  EXPECT_EQ(spec_of(config).rope.theta, 500000.0);
  EXPECT_EQ(spec_without("rope_theta").rope.theta, 10000.0);
  EXPECT_THAT(error_with("rope_parameters", {{"rope_theta", 500000.0}}), HasSubstr("rope_parameters.rope_theta: contradicts"));
}

TEST(HfConfig, AnExplicitHeadDimWins) {
  const ModelSpec spec = spec_with("head_dim", 24);
  EXPECT_EQ(spec.head_dim, 24u);
  EXPECT_EQ(spec.rope.rotary_dim, 24u);
  EXPECT_EQ(spec_with("head_dim", nullptr).head_dim, 8u);
}

TEST(HfConfig, AbsentMembersHaveTheDefaultsOfTheFamily) {
  EXPECT_EQ(spec_without("num_key_value_heads").num_kv_heads, 9u);
  EXPECT_EQ(spec_with("num_key_value_heads", nullptr).num_kv_heads, 9u);
  EXPECT_EQ(spec_without("rms_norm_eps").norm.eps, 1e-6f);
  EXPECT_EQ(spec_without("bos_token_id").bos_id, -1);
  EXPECT_EQ(spec_with("tie_word_embeddings", true).tie_word_embeddings, true);
  EXPECT_NO_THROW(spec_without("architectures"));
  EXPECT_NO_THROW(spec_without("model_type"));
}

TEST(HfConfig, AttentionBiasIsThatOfTheOutputProjectionToo) {
  const ModelSpec attention = spec_with("attention_bias", true);
  EXPECT_TRUE(attention.attention_bias && attention.attention_output_bias);
  EXPECT_FALSE(attention.mlp_bias);
  EXPECT_TRUE(spec_with("mlp_bias", true).mlp_bias);
}

TEST(HfConfig, EosIdsAreTheUnionOfBothFilesInAnyForm) {
  const auto united = [](const json& in_config, const std::string& generation) {
    ModelSpec spec = spec_with("eos_token_id", in_config);
    merge_generation_config(generation_config_from_json(generation, "generation_config.json"), "generation_config.json", spec);
    return spec.eos_ids;
  };
  EXPECT_THAT(united(2, R"({"eos_token_id": [7, 5, 2]})"), ElementsAre(2, 5, 7));
  EXPECT_THAT(united(json::array({9, 2, 9}), R"({"eos_token_id": 3})"), ElementsAre(2, 3, 9));
  EXPECT_THAT(united(nullptr, R"({"eos_token_id": 3})"), ElementsAre(3));
  EXPECT_THAT(united(4, "{}"), ElementsAre(4));
  EXPECT_THAT(united(nullptr, R"({"eos_token_id": null})"), ElementsAre());
  EXPECT_THAT(united(-1, "{}"), ElementsAre());
  EXPECT_THAT(error_of([&] { united(2, R"({"eos_token_id": 257})"); }),
              HasSubstr("generation_config.json: eos_token_id: 257 is outside the vocabulary of 257"));
}

TEST(HfConfig, APadIdOutsideTheVocabularyIsNone) {
  EXPECT_EQ(spec_with("pad_token_id", 257).pad_id, -1);
  EXPECT_EQ(spec_with("pad_token_id", -1).pad_id, -1);
  EXPECT_THAT(error_with("bos_token_id", 257), HasSubstr("bos_token_id: 257 is outside the vocabulary"));
}

TEST(HfConfig, RefusesRotaryScalingByName) {
  EXPECT_THAT(error_with("rope_scaling", {{"rope_type", "ntk"}, {"factor", 8.0}}),
              HasSubstr("rope_scaling.rope_type: 'ntk' is not supported; supported: 'default', 'linear'"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "mrope"}}), HasSubstr("rope_scaling.type: 'mrope' is not supported"));
  EXPECT_THAT(error_with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
              HasSubstr("rope_scaling.low_freq_factor: is missing"));
  EXPECT_THAT(error_with("rope_parameters", {{"rope_type", "yarn"}}), HasSubstr("rope_parameters.factor: is missing"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 4.0}}),
              HasSubstr("rope_scaling.type: 'linear' contradicts rope_type, 'yarn'"));
  EXPECT_THAT(error_with("rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}),
              HasSubstr("rope_scaling.short_factor: a list of 4 numbers is needed"));
  EXPECT_THAT(error_with("rope_parameters", {{"full_attention", {{"rope_theta", 10000.0}}}}),
              HasSubstr("rope_parameters.full_attention: this family has the same"));
  EXPECT_THAT(error_with("rope_scaling", {{"factor", 4.0}}), HasSubstr("rope_scaling.factor: is set"));
  EXPECT_THAT(error_with("rope_scaling", "linear"), HasSubstr("rope_scaling: is \"linear\"; an object is needed"));
  EXPECT_NO_THROW(spec_with("rope_scaling", nullptr));
  EXPECT_NO_THROW(spec_with("rope_scaling", {{"rope_type", "default"}}));
  EXPECT_EQ(spec_with("partial_rotary_factor", 0.5).rope.rotary_dim, 4u);
  EXPECT_THAT(error_with("partial_rotary_factor", 0.4), HasSubstr("partial_rotary_factor: rotates 3 of 8 dims"));
}

TEST(HfConfig, RefusesOtherFamiliesByNameAndSaysWhatIsSupported) {
  EXPECT_THAT(error_with("architectures", json::array({"MambaForCausalLM"})),
              HasSubstr("architectures: 'MambaForCausalLM' is not supported; supported: LlamaForCausalLM, MistralForCausalLM"));
  EXPECT_THAT(error_with("model_type", "mamba"), HasSubstr("model_type: 'mamba' is not supported; supported: LlamaForCausalLM"));
  EXPECT_THAT(error_with("model_type", "qwen2"), HasSubstr("model_type: 'qwen2' contradicts architectures, 'LlamaForCausalLM'"));
  EXPECT_THAT(error_with("hidden_act", "xielu"), HasSubstr("hidden_act: 'xielu' is not supported; supported: 'silu'"));
  EXPECT_THAT(error_of([] { spec_from_hf_config("{}", "config.json"); }), HasSubstr("architectures: is missing"));
}

/// A configuration of the tests' data, with changes.
json changed(const char* folder, const json& changes) {
  json config = json::parse(file_bytes(data_path(std::string("models/") + folder + "/config.json")));
  config.update(changes);
  return config;
}

TEST(HfConfig, TheGateOfExpertsIsLimitedAsTheConfigurationSays) {
  const ModelSpec usual = spec_of(changed("gpt-oss", json::object()));
  EXPECT_EQ(usual.activation, device::Nonlinearity::kGeluQuick);
  EXPECT_EQ(usual.activation_limit, 7.0f);
  EXPECT_EQ(usual.up_offset, 1.0f);
  EXPECT_TRUE(usual.experts.stored_in_out);
  EXPECT_EQ(spec_of(changed("gpt-oss", {{"swiglu_limit", 5.5}})).activation_limit, 5.5f);
  EXPECT_FALSE(spec_of(changed("gpt-oss", {{"quantization_config", {{"quant_method", "mxfp4"}}}})).experts.stored_in_out);
  const auto error = [](const json& changes) { return error_of([&] { spec_of(changed("gpt-oss", changes)); }); };
  EXPECT_THAT(error({{"swiglu_alpha", 1.0}}), HasSubstr("config.json: swiglu_alpha: is 1.000000; 1.702 is supported"));
  EXPECT_THAT(error({{"rope_scaling", nullptr}}),
              HasSubstr("config.json: rope_scaling: it and rope_theta, or rope_parameters, are needed"));
  EXPECT_THAT(error({{"hidden_act", "gelu"}}), HasSubstr("config.json: hidden_act: 'gelu' is not supported in this family"));
  EXPECT_THAT(error({{"swiglu_limit", -1.0}}), HasSubstr("config.json: swiglu_limit"));
  EXPECT_THAT(error({{"num_experts_per_tok", 5}}), HasSubstr("config.json: num_experts_per_tok"));
}

TEST(HfConfig, NormsBehindTheBranchesMeanNoneBeforeTheHead) {
  const ModelSpec usual = spec_of(changed("opt", json::object())), behind = spec_of(changed("opt-post-norm", json::object()));
  EXPECT_TRUE(usual.final_norm && !usual.norms_of_sums && usual.embedding_size == 0);
  EXPECT_TRUE(!behind.final_norm && behind.norms_of_sums && behind.embedding_size == 24);
  EXPECT_FALSE(spec_of(changed("opt", {{"_remove_final_layer_norm", true}})).final_norm);
}

TEST(HfConfig, RefusesNumbersOutOfRangeByKeyAndValue) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                          "vocab_size", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-1), json(1e30), json(~std::uint64_t{0}), json("8"), json(true), json(8.0), json::array({8})}) {
      EXPECT_THAT(error_with(key, value), AllOf(HasSubstr(std::string(key) + ": is "), HasSubstr("a whole number from"))) << value;
    }
  }
  EXPECT_THAT(error_of([] { spec_without("vocab_size"); }), HasSubstr("vocab_size: is missing"));
  EXPECT_THAT(error_with("rms_norm_eps", 0), HasSubstr("rms_norm_eps: must be positive"));
  EXPECT_THAT(error_with("rms_norm_eps", -1e-5), HasSubstr("rms_norm_eps: is -1e-05"));
  EXPECT_THAT(error_with("rope_theta", 0), HasSubstr("rope_theta: is 0"));
  EXPECT_THAT(error_with("attention_bias", "no"), HasSubstr("attention_bias: is \"no\"; true or false"));
  EXPECT_THAT(error_with("eos_token_id", 2.5), HasSubstr("eos_token_id: is 2.5; a token id is needed"));
}

TEST(HfConfig, RefusesHeadsThatDoNotGoTogether) {
  EXPECT_THAT(error_with("num_key_value_heads", 2), AllOf(HasSubstr("number of heads, 9"), HasSubstr("key/value heads, 2")));
  EXPECT_THAT(error_with("num_key_value_heads", 18), HasSubstr("key/value heads, 18"));
  EXPECT_THAT(error_with("hidden_size", 73), HasSubstr("73 is no multiple of num_attention_heads, 9"));
  EXPECT_THAT(error_with("head_dim", 9), HasSubstr("partial_rotary_factor: rotates 9 of 9 dims"));
}

TEST(HfConfig, RefusesWhatIsNoJsonObject) {
  EXPECT_THAT(error_of([] { spec_from_hf_config("", "config.json"); }), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of([] { spec_from_hf_config("[1]", "config.json"); }), HasSubstr("config.json: it is a JSON array"));
  EXPECT_THAT(error_of([] { spec_from_hf_config(std::string(1'000'000, '['), "config.json"); }), HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(error_of([] { spec_from_hf_config("{\"a\": 1e999}", "config.json"); }), HasSubstr("a number in it is out of range"));
}

TEST(GenerationConfig, GivesTheDefaultsThatAreStated) {
  const auto stated =
      generation_config_from_json(
          R"({"temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": 0, "repetition_penalty": 1.1, "do_sample": true})", "g")
          .defaults;
  EXPECT_EQ(stated.temperature, 0.6f);
  EXPECT_EQ(stated.top_p, 0.9f);
  EXPECT_EQ(stated.top_k, 50);
  EXPECT_EQ(stated.min_p, 0.0f);
  EXPECT_EQ(stated.repetition_penalty, 1.1f);
  const auto absent = generation_config_from_json(R"({"temperature": null})", "g").defaults;
  EXPECT_FALSE(absent.temperature || absent.top_p || absent.top_k || absent.min_p || absent.repetition_penalty);
}

TEST(GenerationConfig, RefusesDefaultsOutOfRange) {
  const auto error = [](const std::string& text) { return error_of([&] { generation_config_from_json(text, "generation_config.json"); }); };
  EXPECT_THAT(error(R"({"temperature": -1})"), HasSubstr("generation_config.json: temperature: is -1; a number from 0"));
  EXPECT_THAT(error(R"({"top_p": 1.5})"), HasSubstr("top_p: is 1.5"));
  EXPECT_THAT(error(R"({"top_k": 1.5})"), HasSubstr("top_k: is 1.5"));
  EXPECT_THAT(error(R"({"repetition_penalty": 0})"), HasSubstr("repetition_penalty: is 0"));
}

TEST(ChatTemplateConfig, IsAStringOrTheDefaultOfAList) {
  const auto found = [](const std::string& text) { return chat_template_from_tokenizer_config(text, "t"); };
  EXPECT_EQ(found(R"({"chat_template": "{{ x }}"})"), "{{ x }}");
  EXPECT_EQ(found(R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})"), "b");
  EXPECT_EQ(found(R"({"chat_template": [{"name": "tool_use", "template": "a"}]})"), "");
  EXPECT_EQ(found("{}"), "");
  EXPECT_THAT(error_of([&] { found(R"({"chat_template": [{"name": 1}]})"); }), HasSubstr("t: chat_template: has an entry without"));
  EXPECT_THAT(error_of([&] { found(R"({"chat_template": 1})"); }), HasSubstr("chat_template: is a JSON number"));
}

}  // namespace
}  // namespace lockstep::engine
