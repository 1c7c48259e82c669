// Phi (1 to 2): LayerNorm, partial rotation, attention and feed-forward side by side on one norm, biases everywhere, in the head too.
// Source: Hugging Face transformers (PhiConfig); llama.cpp (MODEL_ARCH.PHI2).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

/// What no configuration leaves open.
void set_parts(ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = spec.head_bias = true;
  spec.parallel_residual = true;
}

void read(const JsonFields& fields, ModelSpec& spec) {
  set_parts(spec);
  spec.head_norms = fields.flag_or("qk_layernorm", false);
  default_rotary_part(fields, 0.5, spec);
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.o = module + ".self_attn.dense";
  if (spec.head_norms) modules.q_norm = module + ".self_attn.q_layernorm", modules.k_norm = module + ".self_attn.k_layernorm";
  modules.head_norm_bias = true;
  return builder.attention(h, modules, layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.fc1", .down = module + ".mlp.fc2"}, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(
      spec, {.feed_forward_norm = "", .final_norm = "model.final_layernorm", .attention = attention, .feed_forward = feed_forward});
}

void describe(GgufKeys&, ModelSpec& spec) { set_parts(spec); }

constexpr ConfigKeys kKeys{.norm_eps = "layer_norm_eps",
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGeluTanh};
constexpr Family kFamilies[] = {{.architecture = "phi",
                                 .class_name = "PhiForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "phi2", .describe = describe}}};

}  // namespace

std::span<const Family> phi_families() { return kFamilies; }

}  // namespace lockstep::engine
