// GLM-4: norms before and behind both branches, rotary pairs (2i, 2i + 1) in a part of each head, one stored tensor for gate and up.
// Source: Hugging Face transformers (Glm4Config); llama.cpp (MODEL_ARCH.GLM4).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, false, spec);
  spec.rotary_pairs_interleaved = true;
  default_rotary_part(fields, 0.5, spec);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  FeedForwardModules modules = FeedForwardModules::standard(module + ".mlp");
  modules.fused = module + ".mlp.gate_up_proj";
  return builder.feed_forward(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(
      spec,
      {.attention_post_norm = "post_self_attn_layernorm", .feed_forward_post_norm = "post_mlp_layernorm", .feed_forward = feed_forward});
}

constexpr Family kFamilies[] = {{.architecture = "glm4",
                                 .class_name = "Glm4ForCausalLM",
                                 .keys = {.default_positions = 131072},
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "glm4", .pairs_interleaved = true}}};

}  // namespace

std::span<const Family> glm_families() { return kFamilies; }

}  // namespace lockstep::engine
