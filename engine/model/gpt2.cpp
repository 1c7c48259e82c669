// GPT-2: LayerNorm, learned positions, one stored tensor for q, k and v, matrices stored [in, out], GELU with tanh, biases everywhere.
// Source: Hugging Face transformers (GPT2Config, Conv1D); llama.cpp (MODEL_ARCH.GPT2), whose files have the matrices as [out, in].

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.intermediate_size = fields.integer_or("n_inner", 1, SpecLimits::kIntermediateSize, 4 * spec.hidden_size);
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  if (!fields.flag_or("scale_attn_weights", true)) spec.attention_scale = 1.0f;
  refuse_flag(fields, "scale_attn_by_inverse_layer_idx");
  refuse_flag(fields, "add_cross_attention");
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  const std::string qkv = module + ".attn.c_attn";
  return builder.attention(h,
                           {.q = qkv + ".q",
                            .k = qkv + ".k",
                            .v = qkv + ".v",
                            .o = module + ".attn.c_proj",
                            .fused = qkv,
                            .fusion = Fusion::kParts,
                            .transposed = true},
                           layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.c_fc", .down = module + ".mlp.c_proj", .transposed = true}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.embedding = {.tokens = "transformer.wte", .positions = "transformer.wpe"},
                              .layers = "transformer.h.",
                              .attention_norm = "ln_1",
                              .feed_forward_norm = "ln_2",
                              .final_norm = "transformer.ln_f",
                              .attention = attention,
                              .feed_forward = feed_forward});
}

void describe(GgufKeys&, ModelSpec& spec) { spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true; }

constexpr ConfigKeys kKeys{.hidden_size = "n_embd",
                           .num_layers = "n_layer",
                           .num_heads = "n_head",
                           .num_kv_heads = nullptr,
                           .intermediate_size = nullptr,
                           .max_positions = "n_positions",
                           .norm_eps = "layer_norm_epsilon",
                           .activation = "activation_function",
                           .default_positions = 1024,
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGeluTanh,
                           .rotary = false,
                           .tied = true};
constexpr Family kFamilies[] = {{.architecture = "gpt2",
                                 .class_name = "GPT2LMHeadModel",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .base_prefix = "transformer.",
                                 .gguf = {.architecture = "gpt2", .rotary = false, .describe = describe}}};

}  // namespace

std::span<const Family> gpt2_families() { return kFamilies; }

}  // namespace lockstep::engine
