// GPT-NeoX: LayerNorm, partial rotation, one stored tensor with q, k and v of each head in turn, attention and feed-forward side by side.
// Source: Hugging Face transformers (GPTNeoXConfig).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"
#include "engine/model/rope.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, true, true, spec);
  spec.mlp_bias = true;
  spec.parallel_residual = fields.flag_or("use_parallel_residual", true);
  spec.rope = rope_from_config(fields, spec.head_dim, spec.max_position_embeddings);
  if (fields.find("rope_parameters") != nullptr) return;
  // Older files have names of their own.
  const auto part = fields.number("rotary_pct", 0.0, 1.0), base = fields.number("rotary_emb_base", 1.0, SpecLimits::kRopeTheta);
  if (fields.find("partial_rotary_factor") == nullptr) spec.rope.rotary_dim = rotary_dim_of(fields, spec.head_dim, part.value_or(0.25));
  if (fields.find("rope_theta") == nullptr && base) spec.rope.theta = *base;
}

parallel::Graph build(const ModelSpec& spec) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "gpt_neox.embed_in"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "gpt_neox.layers." + std::to_string(layer);
    const std::string qkv = module + ".attention.query_key_value";
    const AttentionModules attention{
        .q = qkv + ".q", .k = qkv + ".k", .v = qkv + ".v", .o = module + ".attention.dense", .fused = qkv, .fusion = Fusion::kByHead};
    const FeedForwardModules feed_forward{.up = module + ".mlp.dense_h_to_4h", .down = module + ".mlp.dense_4h_to_h"};
    const auto h = builder.norm(x, module + ".input_layernorm", layer);
    // Side by side, the second norm is of the same x: it is taken before the attention is added.
    auto after = spec.parallel_residual ? builder.norm(x, module + ".post_attention_layernorm", layer, "h2") : h;
    builder.add(x, builder.attention(h, attention, layer), Branch::kAttention, layer);
    if (!spec.parallel_residual) after = builder.norm(x, module + ".post_attention_layernorm", layer, "h2");
    builder.add(x, builder.feed_forward(after, feed_forward, layer), Branch::kFeedForward, layer);
  }
  builder.head(x, "gpt_neox.final_layer_norm", spec.tie_word_embeddings ? "gpt_neox.embed_in" : "embed_out");
  return builder.take();
}

constexpr ConfigKeys kKeys{.num_kv_heads = nullptr,
                           .norm_eps = "layer_norm_eps",
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGelu,
                           .rotary = false};
constexpr Family kFamilies[] = {
    {.architecture = "gpt_neox", .class_name = "GPTNeoXForCausalLM", .keys = kKeys, .read = read, .build = build}};

}  // namespace

std::span<const Family> gpt_neox_families() { return kFamilies; }

}  // namespace lockstep::engine
