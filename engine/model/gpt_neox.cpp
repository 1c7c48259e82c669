// GPT-NeoX: LayerNorm, partial rotation, one stored tensor with q, k and v of each head in turn, attention and feed-forward side by side.
// Source: Hugging Face transformers (GPTNeoXConfig); llama.cpp (MODEL_ARCH.GPTNEOX).

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

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  const std::string qkv = module + ".attention.query_key_value";
  return builder.attention(
      h, {.q = qkv + ".q", .k = qkv + ".k", .v = qkv + ".v", .o = module + ".attention.dense", .fused = qkv, .fusion = Fusion::kByHead},
      layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.dense_h_to_4h", .down = module + ".mlp.dense_4h_to_h"}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.embedding = {.tokens = "gpt_neox.embed_in"},
                              .layers = "gpt_neox.layers.",
                              .final_norm = "gpt_neox.final_layer_norm",
                              .head = "embed_out",
                              .attention = attention,
                              .feed_forward = feed_forward});
}

void describe(GgufKeys& keys, ModelSpec& spec) {
  spec.mlp_bias = true;
  keys.flag("use_parallel_residual", spec.parallel_residual, true);
}

constexpr ConfigKeys kKeys{.num_kv_heads = nullptr,
                           .norm_eps = "layer_norm_eps",
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGelu,
                           .rotary = false};
constexpr Family kFamilies[] = {{.architecture = "gpt_neox",
                                 .class_name = "GPTNeoXForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "gptneox", .describe = describe}}};

}  // namespace

std::span<const Family> gpt_neox_families() { return kFamilies; }

}  // namespace lockstep::engine
