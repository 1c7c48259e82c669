// Phi-3: Llama blocks with one stored tensor for q, k and v and one for gate and up, a sliding window, longrope.
// Source: Hugging Face transformers (Phi3Config); llama.cpp (MODEL_ARCH.PHI3).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) { read_windows(fields, every_layer_slides, spec); }

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.fused = module + ".self_attn.qkv_proj";
  modules.fusion = Fusion::kParts;
  return builder.attention(h, modules, layer);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  FeedForwardModules modules = FeedForwardModules::standard(module + ".mlp");
  modules.fused = module + ".mlp.gate_up_proj";
  return builder.feed_forward(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec, {.attention = attention, .feed_forward = feed_forward}); }

constexpr Family kFamilies[] = {{.architecture = "phi3",
                                 .class_name = "Phi3ForCausalLM",
                                 .keys = {.default_eps = 1e-5},
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "phi3"}}};

}  // namespace

std::span<const Family> phi3_families() { return kFamilies; }

}  // namespace lockstep::engine
