// GLM-4: norms before and behind both branches, rotary pairs (2i, 2i + 1) in a part of each head, one stored tensor for gate and up.
// Source: Hugging Face transformers (Glm4Config).

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

parallel::Graph build(const ModelSpec& spec) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "model.embed_tokens"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer);
    FeedForwardModules feed_forward = FeedForwardModules::standard(module + ".mlp");
    feed_forward.fused = module + ".mlp.gate_up_proj";
    const auto h = builder.norm(x, module + ".input_layernorm", layer);
    const auto attended = builder.attention(h, AttentionModules::standard(spec, module + ".self_attn"), layer);
    builder.add(x, attended, Branch::kAttention, layer, module + ".post_self_attn_layernorm");
    const auto after = builder.norm(x, module + ".post_attention_layernorm", layer);
    builder.add(x, builder.feed_forward(after, feed_forward, layer), Branch::kFeedForward, layer, module + ".post_mlp_layernorm");
  }
  builder.head(x, "model.norm", spec.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  return builder.take();
}

constexpr Family kFamilies[] = {
    {.architecture = "glm4", .class_name = "Glm4ForCausalLM", .keys = {.default_positions = 131072}, .read = read, .build = build}};

}  // namespace

std::span<const Family> glm_families() { return kFamilies; }

}  // namespace lockstep::engine
