// BLOOM: ALiBi in place of positions, a LayerNorm on the embeddings, one stored tensor with q, k and v of each head in turn.
// Source: Hugging Face transformers (BloomConfig, build_alibi_tensor); llama.cpp (MODEL_ARCH.BLOOM).

#include <bit>
#include <cmath>

#include "device/portable_math.h"
#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

/// Powers of 2^(-8 / n) for the largest power of two n that is at most the number of heads, then every other power for 2 n.
std::vector<float> alibi_slopes(std::size_t num_heads) {
  namespace portable = device::portable;
  std::vector<float> slopes;
  const std::size_t n = std::bit_floor(num_heads);
  const double base = portable::pow(2.0, -8.0 / static_cast<double>(n)), finer = portable::pow(2.0, -4.0 / static_cast<double>(n));
  for (std::size_t i = 0; i < n; ++i) slopes.push_back(static_cast<float>(portable::pow(base, static_cast<double>(i + 1))));
  for (std::size_t i = 0; slopes.size() < num_heads; ++i)
    slopes.push_back(static_cast<float>(portable::pow(finer, static_cast<double>(2 * i + 1))));
  return slopes;
}

/// What no configuration leaves open.
void set_parts(ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  spec.slopes = alibi_slopes(spec.num_heads);
}

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.intermediate_size = 4 * spec.hidden_size;
  set_parts(spec);
  refuse_flag(fields, "apply_residual_connection_post_layernorm");
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  const std::string qkv = module + ".self_attention.query_key_value";
  return builder.attention(
      h,
      {.q = qkv + ".q", .k = qkv + ".k", .v = qkv + ".v", .o = module + ".self_attention.dense", .fused = qkv, .fusion = Fusion::kByHead},
      layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.dense_h_to_4h", .down = module + ".mlp.dense_4h_to_h"}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.embedding = {.tokens = "transformer.word_embeddings", .norm = "transformer.word_embeddings_layernorm"},
                              .layers = "transformer.h.",
                              .final_norm = "transformer.ln_f",
                              .attention = attention,
                              .feed_forward = feed_forward});
}

void describe(GgufKeys&, ModelSpec& spec) { set_parts(spec); }

constexpr ConfigKeys kKeys{.num_layers = "n_layer",
                           .num_heads = "n_head",
                           .num_kv_heads = nullptr,
                           .intermediate_size = nullptr,
                           .max_positions = "seq_length",
                           .norm_eps = "layer_norm_epsilon",
                           .activation = nullptr,
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGeluTanh,
                           .rotary = false,
                           .tied = true};
constexpr Family kFamilies[] = {{.architecture = "bloom",
                                 .class_name = "BloomForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .base_prefix = "transformer.",
                                 .gguf = {.architecture = "bloom", .rotary = false, .describe = describe}}};

}  // namespace

std::span<const Family> bloom_families() { return kFamilies; }

}  // namespace lockstep::engine
