// OLMo 2: norms behind the branches and none before, and norms of q and k that span all heads.
// Source: Hugging Face transformers (Olmo2Config).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.head_norms = true;
}

parallel::Graph build(const ModelSpec& spec) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "model.embed_tokens"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer);
    AttentionModules attention = AttentionModules::standard(spec, module + ".self_attn");
    attention.norms_span_heads = true;
    builder.add(x, builder.attention(x, attention, layer), Branch::kAttention, layer, module + ".post_attention_layernorm");
    const auto fed = builder.feed_forward(x, FeedForwardModules::standard(module + ".mlp"), layer);
    builder.add(x, fed, Branch::kFeedForward, layer, module + ".post_feedforward_layernorm");
  }
  builder.head(x, "model.norm", spec.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  return builder.take();
}

constexpr Family kFamilies[] = {
    {.architecture = "olmo2", .class_name = "Olmo2ForCausalLM", .keys = {.default_eps = 1e-5}, .read = read, .build = build}};

}  // namespace

std::span<const Family> olmo2_families() { return kFamilies; }

}  // namespace lockstep::engine
