// StableLM: LayerNorm, partial rotation, SwiGLU; attention and feed-forward one after the other or side by side.
// Source: Hugging Face transformers (StableLmConfig); llama.cpp (MODEL_ARCH.STABLELM).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = fields.flag_or("use_qkv_bias", false);
  spec.parallel_residual = fields.flag_or("use_parallel_residual", false);
  spec.head_norms = fields.flag_or("qk_layernorm", false);
  default_rotary_part(fields, 0.25, spec);
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  if (spec.head_norms) modules.q_norm = module + ".self_attn.q_layernorm", modules.k_norm = module + ".self_attn.k_layernorm";
  modules.head_norms = HeadNorms::kEachApart;
  return builder.attention(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.feed_forward_norm = spec.parallel_residual ? "" : "post_attention_layernorm", .attention = attention});
}

/// Some converters state use_parallel_residual wrongly: the second norm tells.
void describe(GgufKeys& keys, ModelSpec& spec) {
  spec.parallel_residual = !keys.has_tensor("blk.0.ffn_norm.weight", !spec.parallel_residual);
  spec.head_norms = keys.has_tensor("blk.0.attn_q_norm.weight", spec.head_norms);
}

constexpr ConfigKeys kKeys{
    .norm_eps = "layer_norm_eps", .default_positions = 4096, .default_eps = 1e-5, .norm = device::Norm::Kind::kLayer};
constexpr Family kFamilies[] = {{.architecture = "stablelm",
                                 .class_name = "StableLmForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "stablelm", .describe = describe}}};

}  // namespace

std::span<const Family> stablelm_families() { return kFamilies; }

}  // namespace lockstep::engine
