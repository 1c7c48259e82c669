// gpt-oss: a mixture of experts with biases and a limited activation in every layer, a sink beside the keys of each head, every other layer
// slides. Source: Hugging Face transformers (GptOssConfig); llama.cpp (MODEL_ARCH.GPT_OSS).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

constexpr double kLimit = 7.0, kSlope = 1.702;

/// What no key says: the checkpoints of this family have it.
void fix(ModelSpec& spec) {
  spec.attention_sinks = true;
  spec.activation = device::Nonlinearity::kGeluQuick;
  spec.activation_limit = static_cast<float>(kLimit);
  spec.up_offset = 1.0f;
  spec.experts.bias = spec.experts.renormalised = true;
}

void read(const JsonFields& fields, ModelSpec& spec) {
  fix(spec);
  // The reference has defaults of its own for these, which no checkpoint needs.
  const bool states_rotation = fields.find("rope_theta") != nullptr && fields.find("rope_scaling") != nullptr;
  if (!states_rotation && fields.find("rope_parameters") == nullptr)
    fields.fail("rope_scaling", "it and rope_theta, or rope_parameters, are needed");
  read_attention_bias(fields, true, true, spec);
  read_windows(
      fields, [](const JsonFields&, std::size_t layer) { return layer % 2 == 0; }, spec);
  const std::string function = fields.text("hidden_act").value_or("silu");
  if (function != "silu") fields.fail("hidden_act", "'" + function + "' is not supported in this family; supported: 'silu'");
  const double slope = fields.number("swiglu_alpha", 0.0, 1e3).value_or(kSlope);
  if (slope != kSlope) fields.fail("swiglu_alpha", "is " + std::to_string(slope) + "; 1.702 is supported");
  spec.activation_limit = static_cast<float>(fields.number("swiglu_limit", 1e-3, 1e9).value_or(kLimit));
  spec.experts.count = fields.integer("num_local_experts", 1, SpecLimits::kExperts);
  spec.experts.per_token = fields.integer("num_experts_per_tok", 1, spec.experts.count);
  spec.experts.intermediate_size = spec.intermediate_size;
  const auto quantisation = fields.object("quantization_config");
  spec.experts.stored_in_out = !quantisation || quantisation->text("quant_method") != "mxfp4";
}

GraphBuilder::Sum experts(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.experts(h, {.router = module + ".mlp.router", .experts = module + ".mlp.experts", .fused = "gate_up_proj"}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.feed_forward_norm_gguf = "post_attention_norm", .feed_forward = experts});
}

void describe(GgufKeys&, ModelSpec& spec) {
  fix(spec);
  spec.rope.truncate = false;
}

constexpr Family kFamilies[] = {
    {.architecture = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .keys = {.activation = nullptr, .default_positions = 131072, .default_eps = 1e-5},
     .read = read,
     .build = build,
     .gguf = {.architecture = "gpt-oss", .has_experts = true, .window_period = 2, .window = 128, .describe = describe}}};

}  // namespace

std::span<const Family> gpt_oss_families() { return kFamilies; }

}  // namespace lockstep::engine
