// The Llama family: pre-norm blocks of rotary attention with grouped KV heads and SwiGLU, RMSNorm, optional biases, tied or separate head.
// Source: the model's configuration in Hugging Face transformers (LlamaConfig), and llama.cpp's GGUF files (MODEL_ARCH.LLAMA).

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.mlp_bias = fields.flag_or("mlp_bias", false);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec); }

constexpr Family kFamilies[] = {{.architecture = "llama",
                                 .class_name = "LlamaForCausalLM",
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "llama", .pairs_interleaved = true}}};

}  // namespace

std::span<const Family> llama_families() { return kFamilies; }

}  // namespace lockstep::engine
