// OLMo 2: norms behind the branches and none before, and norms of q and k that span all heads.
// Source: Hugging Face transformers (Olmo2Config); llama.cpp (MODEL_ARCH.OLMO2).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.head_norms = true;
}

GraphBuilder::Sum attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                            std::size_t layer) {
  AttentionModules modules = AttentionModules::standard(spec, module + ".self_attn");
  modules.head_norms = HeadNorms::kSpanning;
  return builder.attention(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) {
  return build_decoder(spec, {.attention_norm = "",
                              .attention_post_norm = "post_attention_layernorm",
                              .feed_forward_norm = "",
                              .feed_forward_post_norm = "post_feedforward_layernorm",
                              .attention = attention});
}

void describe(GgufKeys& keys, ModelSpec& spec) {
  spec.head_norms = true;
  if (!spec.windows.empty()) keys.fail("attention.sliding_window", "is not supported in this architecture");
}

constexpr Family kFamilies[] = {{.architecture = "olmo2",
                                 .class_name = "Olmo2ForCausalLM",
                                 .keys = {.default_eps = 1e-5},
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "olmo2", .describe = describe}}};

}  // namespace

std::span<const Family> olmo2_families() { return kFamilies; }

}  // namespace lockstep::engine
