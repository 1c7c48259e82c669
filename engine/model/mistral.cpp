// Mistral: Llama blocks with an optional sliding window. Mixtral: with a mixture of experts in every layer.
// Source: Hugging Face transformers (MistralConfig, MixtralConfig). GGUF files of both say "llama".

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read_mistral(const JsonFields& fields, ModelSpec& spec) { read_windows(fields, every_layer_slides, spec); }

void read_mixtral(const JsonFields& fields, ModelSpec& spec) {
  read_mistral(fields, spec);
  spec.experts.count = fields.integer("num_local_experts", 1, SpecLimits::kExperts);
  spec.experts.per_token = fields.integer("num_experts_per_tok", 1, spec.experts.count);
  spec.experts.intermediate_size = spec.intermediate_size;
  spec.experts.renormalised = true;
}

GraphBuilder::Sum experts(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module, std::size_t layer) {
  const std::string mixture = module + ".block_sparse_moe";
  return builder.experts(h, {.router = mixture + ".gate", .experts = mixture + ".experts", .gate = "w1", .up = "w3", .down = "w2"}, layer);
}

parallel::Graph build_mistral(const ModelSpec& spec) { return build_decoder(spec); }
parallel::Graph build_mixtral(const ModelSpec& spec) { return build_decoder(spec, {.feed_forward = experts}); }

void describe_mixtral(GgufKeys&, ModelSpec& spec) { spec.experts.renormalised = true; }

constexpr Family kFamilies[] = {
    {.architecture = "mistral",
     .class_name = "MistralForCausalLM",
     .read = read_mistral,
     .build = build_mistral,
     .gguf = {.architecture = "llama", .pairs_interleaved = true}},
    {.architecture = "mixtral",
     .class_name = "MixtralForCausalLM",
     .read = read_mixtral,
     .build = build_mixtral,
     .gguf = {.architecture = "llama", .has_experts = true, .pairs_interleaved = true, .describe = describe_mixtral}}};

}  // namespace

std::span<const Family> mistral_families() { return kFamilies; }

}  // namespace lockstep::engine
