// Cohere: LayerNorm without bias, attention and feed-forward side by side on one norm, rotary pairs (2i, 2i + 1), scaled logits.
// Source: Hugging Face transformers (CohereConfig); llama.cpp (MODEL_ARCH.COMMAND_R).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.norm.has_bias = false;
  spec.rotary_pairs_interleaved = true;
  spec.parallel_residual = true;
  spec.logit_scale = read_scale(fields, "logit_scale", 0.0625);
  read_attention_bias(fields, false, true, spec);
  spec.head_norms = fields.flag_or("use_qk_norm", false);
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.head_norms = HeadNorms::kEach;
  return builder.attention(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec, {.feed_forward_norm = "", .attention = attention}); }

void describe(GgufKeys& keys, ModelSpec& spec) {
  spec.parallel_residual = true;
  keys.number("logit_scale", spec.logit_scale, {1e-9, 1e9}, 1.0);
  spec.head_norms = keys.has_tensor("blk.0.attn_q_norm.weight", spec.head_norms);
}

constexpr ConfigKeys kKeys{
    .norm_eps = "layer_norm_eps", .default_positions = 8192, .default_eps = 1e-5, .norm = device::Norm::Kind::kLayer, .tied = true};
constexpr Family kFamilies[] = {{.architecture = "cohere",
                                 .class_name = "CohereForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "command-r", .pairs_interleaved = true, .describe = describe}}};

}  // namespace

std::span<const Family> cohere_families() { return kFamilies; }

}  // namespace lockstep::engine
