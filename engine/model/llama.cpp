// The Llama family: pre-norm blocks of rotary attention with grouped KV heads and SwiGLU, RMSNorm, optional biases, tied or separate head.
// Source: the model's configuration in Hugging Face transformers (LlamaConfig) and llama.cpp's GGUF naming (gguf-py, MODEL_ARCH.LLAMA).

#include "engine/model/blocks.h"
#include "engine/model/registry.h"

namespace lockstep::engine {

parallel::Graph build_llama(const ModelSpec& spec) {
  GraphBuilder builder(spec);
  const auto x = builder.embedding("model.embed_tokens");
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer);
    builder.attention(x, builder.rms_norm(x, module + ".input_layernorm", layer), module + ".self_attn", layer);
    builder.swiglu(x, builder.rms_norm(x, module + ".post_attention_layernorm", layer), module + ".mlp", layer);
  }
  builder.head(x, "model.norm", spec.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  return builder.take();
}

const std::vector<ModuleNames>& llama_modules() {
  static const std::vector<ModuleNames> modules{
      {"model.embed_tokens", "token_embd"},
      {"model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
      {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
      {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
      {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
      {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
      {"model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
      {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
      {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"},
      {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"},
      {"model.norm", "output_norm"},
      {"lm_head", "output"},
  };
  return modules;
}

}  // namespace lockstep::engine
