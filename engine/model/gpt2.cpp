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

parallel::Graph build(const ModelSpec& spec) {
  using Branch = GraphBuilder::Branch;
  const bool transposed = spec.naming == NamingScheme::kHuggingFace;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "transformer.wte", .positions = "transformer.wpe"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "transformer.h." + std::to_string(layer);
    const std::string qkv = module + ".attn.c_attn";
    const AttentionModules attention{.q = qkv + ".q",
                                     .k = qkv + ".k",
                                     .v = qkv + ".v",
                                     .o = module + ".attn.c_proj",
                                     .fused = qkv,
                                     .fusion = Fusion::kParts,
                                     .transposed = transposed};
    const FeedForwardModules feed_forward{.up = module + ".mlp.c_fc", .down = module + ".mlp.c_proj", .transposed = transposed};
    builder.add(x, builder.attention(builder.norm(x, module + ".ln_1", layer), attention, layer), Branch::kAttention, layer);
    builder.add(x, builder.feed_forward(builder.norm(x, module + ".ln_2", layer), feed_forward, layer), Branch::kFeedForward, layer);
  }
  builder.head(x, "transformer.ln_f", spec.tie_word_embeddings ? "transformer.wte" : "lm_head");
  return builder.take();
}

void read_gguf(const GgufFile&, ModelSpec& spec) { spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true; }

constexpr ModuleNames kModules[] = {
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.h.{}.ln_1", "blk.{}.attn_norm"},
    {"transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"},
    {"transformer.h.{}.attn.c_proj", "blk.{}.attn_output"},
    {"transformer.h.{}.ln_2", "blk.{}.ffn_norm"},
    {"transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"},
    {"transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"},
    {"transformer.ln_f", "output_norm"},
    {"lm_head", "output"},
};

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
                                 .gguf = "gpt2",
                                 .modules = kModules,
                                 .read_gguf = read_gguf}};

}  // namespace

std::span<const Family> gpt2_families() { return kFamilies; }

}  // namespace lockstep::engine
