// StarCoder2: LayerNorm, biases everywhere, two matrices with GELU between, a sliding window, a tied head.
// Source: Hugging Face transformers (Starcoder2Config); llama.cpp (MODEL_ARCH.STARCODER2).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = fields.flag_or("use_bias", true);
  read_windows(fields, every_layer_slides, spec);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  return builder.feed_forward(h, {.up = module + ".mlp.c_fc", .down = module + ".mlp.c_proj"}, layer);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec, {.feed_forward = feed_forward}); }

constexpr ConfigKeys kKeys{.norm_eps = "norm_epsilon",
                           .default_positions = 4096,
                           .default_eps = 1e-5,
                           .norm = device::Norm::Kind::kLayer,
                           .default_activation = device::Nonlinearity::kGeluTanh,
                           .tied = true};
constexpr Family kFamilies[] = {{.architecture = "starcoder2",
                                 .class_name = "Starcoder2ForCausalLM",
                                 .keys = kKeys,
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "starcoder2"}}};

}  // namespace

std::span<const Family> starcoder2_families() { return kFamilies; }

}  // namespace lockstep::engine
