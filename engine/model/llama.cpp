// The Llama family: pre-norm blocks of rotary attention with grouped KV heads and SwiGLU, RMSNorm, optional biases, tied or separate head.
// Source: the model's configuration in Hugging Face transformers (LlamaConfig) and llama.cpp's GGUF naming (gguf-py, MODEL_ARCH.LLAMA).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/gguf_config.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.mlp_bias = fields.flag_or("mlp_bias", false);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec); }

void read_gguf(const GgufFile& file, ModelSpec& spec) { biases_from_tensors(file, spec); }

constexpr ModuleNames kModules[] = {
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

constexpr Family kFamilies[] = {{.architecture = "llama",
                                 .class_name = "LlamaForCausalLM",
                                 .read = read,
                                 .build = build,
                                 .gguf = "llama",
                                 .modules = kModules,
                                 .gguf_pairs_interleaved = true,
                                 .read_gguf = read_gguf}};

}  // namespace

std::span<const Family> llama_families() { return kFamilies; }

}  // namespace lockstep::engine
