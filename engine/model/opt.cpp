// OPT: LayerNorm, learned positions from row 2 of their table on, ReLU, biases everywhere, a tied head.
// Source: Hugging Face transformers (OPTConfig).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = fields.flag_or("enable_bias", true);
  if (!fields.flag_or("do_layer_norm_before", true)) fields.fail("do_layer_norm_before", "false is not supported");
  if (!fields.flag_or("layer_norm_elementwise_affine", true)) spec.norm.has_weight = spec.norm.has_bias = false;
  refuse_flag(fields, "_remove_final_layer_norm");
  if (fields.integer_or("word_embed_proj_dim", 1, SpecLimits::kHiddenSize, spec.hidden_size) != spec.hidden_size)
    fields.fail("word_embed_proj_dim", "is not hidden_size, which is not supported");
}

parallel::Graph build(const ModelSpec& spec) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x =
      builder.embedding({.tokens = "model.decoder.embed_tokens", .positions = "model.decoder.embed_positions", .position_offset = 2});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.decoder.layers." + std::to_string(layer);
    AttentionModules attention = AttentionModules::standard(spec, module + ".self_attn");
    attention.o = module + ".self_attn.out_proj";
    const auto h = builder.norm(x, module + ".self_attn_layer_norm", layer);
    builder.add(x, builder.attention(h, attention, layer), Branch::kAttention, layer);
    const auto after = builder.norm(x, module + ".final_layer_norm", layer);
    builder.add(x, builder.feed_forward(after, {.up = module + ".fc1", .down = module + ".fc2"}, layer), Branch::kFeedForward, layer);
  }
  builder.head(x, "model.decoder.final_layer_norm", spec.tie_word_embeddings ? "model.decoder.embed_tokens" : "lm_head");
  return builder.take();
}

constexpr ConfigKeys kKeys{.num_kv_heads = nullptr,
                           .intermediate_size = "ffn_dim",
                           .norm_eps = nullptr,
                           .activation = "activation_function",
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kRelu,
                           .rotary = false,
                           .tied = true};
constexpr Family kFamilies[] = {
    {.architecture = "opt", .class_name = "OPTForCausalLM", .keys = kKeys, .read = read, .build = build, .base_prefix = "model."}};

}  // namespace

std::span<const Family> opt_families() { return kFamilies; }

}  // namespace lockstep::engine
