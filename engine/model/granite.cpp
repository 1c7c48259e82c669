// Granite: Llama blocks with four numbers: of the embeddings, the scores, the branches and the logits.
// Source: Hugging Face transformers (GraniteConfig); llama.cpp (MODEL_ARCH.GRANITE).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.mlp_bias = fields.flag_or("mlp_bias", false);
  spec.embedding_scale = read_scale(fields, "embedding_multiplier", 1.0);
  spec.residual_scale = read_scale(fields, "residual_multiplier", 1.0);
  spec.attention_scale = read_scale(fields, "attention_multiplier", 1.0);
  spec.logit_divisor = read_scale(fields, "logits_scaling", 1.0);
  if (spec.residual_scale != 1.0f && (spec.attention_output_bias || spec.mlp_bias))
    fields.fail("residual_multiplier", "together with biases is not supported");
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec); }

void describe(GgufKeys& keys, ModelSpec& spec) {
  constexpr GgufKeys::Range kPositive{1e-9, 1e9};
  keys.number("embedding_scale", spec.embedding_scale, kPositive, 1.0);
  keys.number("residual_scale", spec.residual_scale, kPositive, 1.0);
  keys.number("attention.scale", spec.attention_scale, {0.0, 1e9}, 0.0);
  keys.number("logit_scale", spec.logit_divisor, kPositive);
  if (spec.residual_scale != 1.0f && (spec.attention_output_bias || spec.mlp_bias))
    keys.fail("residual_scale", "together with biases is not supported");
}

constexpr Family kFamilies[] = {{.architecture = "granite",
                                 .class_name = "GraniteForCausalLM",
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "granite", .pairs_interleaved = true, .describe = describe}}};

}  // namespace

std::span<const Family> granite_families() { return kFamilies; }

}  // namespace lockstep::engine
