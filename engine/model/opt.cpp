// OPT: LayerNorm (before the branches or, in one size, behind them), learned positions from row 2 of their table on, ReLU, biases
// everywhere, a tied head. Source: Hugging Face transformers (OPTConfig).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = fields.flag_or("enable_bias", true);
  spec.norms_of_sums = !fields.flag_or("do_layer_norm_before", true);
  spec.final_norm = !spec.norms_of_sums && !fields.flag_or("_remove_final_layer_norm", false);
  if (!fields.flag_or("layer_norm_elementwise_affine", true)) spec.norm.has_weight = spec.norm.has_bias = false;
  const std::size_t embedding = fields.integer_or("word_embed_proj_dim", 1, SpecLimits::kHiddenSize, spec.hidden_size);
  if (embedding != spec.hidden_size) spec.embedding_size = embedding;
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.o = module + ".self_attn.out_proj";
  return builder.attention(h, modules, layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".fc1", .down = module + ".fc2"}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.embedding = {.tokens = "model.decoder.embed_tokens",
                                            .positions = "model.decoder.embed_positions",
                                            .position_offset = 2,
                                            .projection = "model.decoder.project_in"},
                              .layers = "model.decoder.layers.",
                              .attention_norm = "self_attn_layer_norm",
                              .feed_forward_norm = "final_layer_norm",
                              .final_norm = "model.decoder.final_layer_norm",
                              .head_projection = "model.decoder.project_out",
                              .attention = attention,
                              .feed_forward = feed_forward});
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
