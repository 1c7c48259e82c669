// Phi (1 to 2): LayerNorm, partial rotation, attention and feed-forward side by side on one norm, biases everywhere, in the head too.
// Source: Hugging Face transformers (PhiConfig).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = spec.head_bias = true;
  refuse_flag(fields, "qk_layernorm");
  default_rotary_part(fields, 0.5, spec);
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.o = module + ".self_attn.dense";
  return builder.attention(h, modules, layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.fc1", .down = module + ".mlp.fc2"}, layer);
}

parallel::Graph build(const ModelSpec& spec) { return build_parallel_decoder(spec, attention, feed_forward, "model.final_layernorm"); }

constexpr ConfigKeys kKeys{.norm_eps = "layer_norm_eps",
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGeluTanh};
constexpr Family kFamilies[] = {{.architecture = "phi", .class_name = "PhiForCausalLM", .keys = kKeys, .read = read, .build = build}};

}  // namespace

std::span<const Family> phi_families() { return kFamilies; }

}  // namespace lockstep::engine
