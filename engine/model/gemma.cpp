// Gemma 1 to 3: norms by 1 + weight, embeddings times sqrt(hidden), GELU gates, a tied head. Gemma 2 adds norms behind the branches, soft
// caps and sliding layers; Gemma 3 norms of heads and a second rotary base for its sliding layers.
// Source: Hugging Face transformers (GemmaConfig, Gemma2Config, Gemma3TextConfig); llama.cpp (MODEL_ARCH.GEMMA ...): files have 1 + weight.

#include <algorithm>
#include <cmath>

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"
#include "engine/model/rope.h"

namespace lockstep::engine {
namespace {

float embedding_scale(const ModelSpec& spec) { return static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size))); }

void read_gemma(const JsonFields& fields, ModelSpec& spec) {
  spec.norm.weight_offset = 1.0f;
  spec.embedding_scale = embedding_scale(spec);
  read_attention_bias(fields, false, true, spec);
}

/// The scale of the scores, and the caps.
void read_scores(const JsonFields& fields, ModelSpec& spec) {
  read_gemma(fields, spec);
  refuse_flag(fields, "use_bidirectional_attention");
  spec.attention_scale = static_cast<float>(1.0 / std::sqrt(fields.number("query_pre_attn_scalar", 1e-6, 1e9).value_or(256.0)));
  spec.attention_soft_cap = read_scale(fields, "attn_logit_softcapping", 0.0);
  spec.logit_soft_cap = read_scale(fields, "final_logit_softcapping", 0.0);
}

void read_gemma2(const JsonFields& fields, ModelSpec& spec) {
  read_scores(fields, spec);
  read_windows(
      fields, [](const JsonFields&, std::size_t layer) { return layer % 2 == 0; }, spec);
}

/// Every sixth layer sees all, the others slide.
bool slides_in_gemma3(const JsonFields& fields, std::size_t layer) {
  const char* key = fields.find("sliding_window_pattern") != nullptr ? "sliding_window_pattern" : "_sliding_window_pattern";
  return (layer + 1) % fields.integer_or(key, 1, SpecLimits::kLayers, 6) != 0;
}

void read_gemma3(const JsonFields& fields, ModelSpec& spec) {
  read_scores(fields, spec);
  spec.head_norms = true;
  read_windows(fields, slides_in_gemma3, spec);
  spec.rope = rope_from_config(fields, spec.head_dim, spec.max_position_embeddings, "full_attention");
  if (fields.find("rope_parameters") != nullptr) {
    spec.local_rope = rope_from_config(fields, spec.head_dim, spec.max_position_embeddings, "sliding_attention");
  } else {
    spec.local_rope = RopeSpec{.theta = fields.number("rope_local_base_freq", 1.0, SpecLimits::kRopeTheta).value_or(10000.0),
                               .rotary_dim = spec.head_dim};
  }
}

parallel::Graph build_gemma(const ModelSpec& spec) { return build_decoder(spec); }

parallel::Graph build_gemma2(const ModelSpec& spec) {
  return build_decoder(spec, {.attention_post_norm = "post_attention_layernorm",
                              .feed_forward_norm = "pre_feedforward_layernorm",
                              .feed_forward_post_norm = "post_feedforward_layernorm"});
}

void describe_gemma(GgufKeys&, ModelSpec& spec) { spec.embedding_scale = embedding_scale(spec); }

/// Of the largest model the scale of the scores follows from the width, of all others from the heads; no key says so, only its depth.
void describe_scores(GgufKeys& keys, std::size_t layers_of_largest, ModelSpec& spec) {
  const std::size_t size =
      spec.num_layers == layers_of_largest ? std::max<std::size_t>(1, spec.hidden_size / spec.num_heads) : spec.head_dim;
  spec.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  keys.number("final_logit_softcapping", spec.logit_soft_cap, {0.0, 1e9}, 0.0);
}

void describe_gemma2(GgufKeys& keys, ModelSpec& spec) {
  describe_gemma(keys, spec);
  describe_scores(keys, 46, spec);
  keys.number("attn_logit_softcapping", spec.attention_soft_cap, {0.0, 1e9}, 0.0);
}

void describe_gemma3(GgufKeys& keys, ModelSpec& spec) {
  describe_gemma(keys, spec);
  describe_scores(keys, 62, spec);
  spec.head_norms = true;
  RopeSpec local{.theta = spec.local_rope ? spec.local_rope->theta : 0.0, .rotary_dim = spec.rope.rotary_dim};
  keys.number("rope.freq_base_swa", local.theta, {1.0, SpecLimits::kRopeTheta}, 10000.0);
  spec.local_rope = local;
}

constexpr ConfigKeys kKeys{
    .activation = "hidden_activation", .default_positions = 8192, .default_activation = device::Nonlinearity::kGeluTanh, .tied = true};
constexpr ConfigKeys kGemma3Keys{.activation = "hidden_activation",
                                 .default_positions = 131072,
                                 .default_activation = device::Nonlinearity::kGeluTanh,
                                 .rotary = false,
                                 .tied = true};
constexpr Family kFamilies[] = {{.architecture = "gemma",
                                 .class_name = "GemmaForCausalLM",
                                 .keys = kKeys,
                                 .read = read_gemma,
                                 .build = build_gemma,
                                 .gguf = {.architecture = "gemma", .describe = describe_gemma}},
                                {.architecture = "gemma2",
                                 .class_name = "Gemma2ForCausalLM",
                                 .keys = kKeys,
                                 .read = read_gemma2,
                                 .build = build_gemma2,
                                 .gguf = {.architecture = "gemma2", .window_period = 2, .window = 4096, .describe = describe_gemma2}},
                                {.architecture = "gemma3_text",
                                 .class_name = "Gemma3ForCausalLM",
                                 .keys = kGemma3Keys,
                                 .read = read_gemma3,
                                 .build = build_gemma2,
                                 .gguf = {.architecture = "gemma3", .window_period = 6, .describe = describe_gemma3}}};

}  // namespace

std::span<const Family> gemma_families() { return kFamilies; }

}  // namespace lockstep::engine
