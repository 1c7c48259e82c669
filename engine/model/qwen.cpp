// Qwen2 (biases of q, k and v; layers that slide), Qwen3 (norms of each query and key head) and their mixtures of experts.
// Source: Hugging Face transformers (Qwen2Config, Qwen3Config, Qwen2MoeConfig, Qwen3MoeConfig); llama.cpp (MODEL_ARCH.QWEN2 ...).

#include <algorithm>

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

/// Only with use_sliding_window, and from layer max_window_layers on.
void read_qwen_windows(const JsonFields& fields, ModelSpec& spec) {
  if (!fields.flag_or("use_sliding_window", false)) return;
  read_windows(
      fields,
      [](const JsonFields& config, std::size_t layer) {
        return layer >= config.integer_or("max_window_layers", 0, SpecLimits::kLayers, 28);
      },
      spec);
}

void read_qwen2(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = true;
  read_qwen_windows(fields, spec);
}

void read_qwen3(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.head_norms = true;
  read_qwen_windows(fields, spec);
}

void read_experts(const JsonFields& fields, std::size_t default_per_token, ModelSpec& spec) {
  ExpertSpec& experts = spec.experts;
  experts.count =
      fields.integer_or("num_experts", 1, SpecLimits::kExperts, fields.integer_or("num_local_experts", 1, SpecLimits::kExperts, 0));
  if (experts.count == 0) fields.fail("num_experts", "is missing");
  experts.per_token = fields.integer_or("num_experts_per_tok", 1, experts.count, default_per_token);
  experts.intermediate_size = fields.integer("moe_intermediate_size", 1, SpecLimits::kIntermediateSize);
  experts.renormalised = fields.flag_or("norm_topk_prob", false);
  const std::size_t step = fields.integer_or("decoder_sparse_step", 1, SpecLimits::kLayers, 1);
  std::vector<std::size_t> dense = layer_list(fields, "mlp_only_layers");
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer)
    experts.layers.push_back((layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end());
}

void read_qwen2_moe(const JsonFields& fields, ModelSpec& spec) {
  spec.attention_bias = fields.flag_or("qkv_bias", true);
  read_qwen_windows(fields, spec);
  read_experts(fields, 4, spec);
  spec.experts.shared_intermediate_size = fields.integer("shared_expert_intermediate_size", 1, SpecLimits::kIntermediateSize);
}

void read_qwen3_moe(const JsonFields& fields, ModelSpec& spec) {
  read_qwen3(fields, spec);
  read_experts(fields, 8, spec);
}

GraphBuilder::Sum feed_forward(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                               std::size_t layer) {
  if (!spec.has_experts(layer)) return standard_feed_forward(builder, spec, h, module, layer);
  ExpertModules modules{.router = module + ".mlp.gate", .experts = module + ".mlp.experts"};
  if (spec.experts.shared_intermediate_size > 0) {
    modules.shared = module + ".mlp.shared_expert";
    modules.shared_gate = module + ".mlp.shared_expert_gate";
  }
  return builder.experts(h, modules, layer);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec, {.feed_forward = feed_forward}); }

void describe_qwen2(GgufKeys&, ModelSpec& spec) { spec.attention_bias = true; }
void describe_qwen3(GgufKeys&, ModelSpec& spec) { spec.head_norms = true; }

void describe_qwen2_moe(GgufKeys& keys, ModelSpec& spec) {
  spec.attention_bias = true;
  spec.experts.renormalised = false;
  keys.size("expert_shared_feed_forward_length", spec.experts.shared_intermediate_size, {1, SpecLimits::kIntermediateSize},
            spec.intermediate_size);
}

void describe_qwen3_moe(GgufKeys&, ModelSpec& spec) { spec.head_norms = spec.experts.renormalised = true; }

constexpr Family kFamilies[] = {{.architecture = "qwen2",
                                 .class_name = "Qwen2ForCausalLM",
                                 .read = read_qwen2,
                                 .build = build,
                                 .gguf = {.architecture = "qwen2", .describe = describe_qwen2}},
                                {.architecture = "qwen3",
                                 .class_name = "Qwen3ForCausalLM",
                                 .read = read_qwen3,
                                 .build = build,
                                 .gguf = {.architecture = "qwen3", .describe = describe_qwen3}},
                                {.architecture = "qwen2_moe",
                                 .class_name = "Qwen2MoeForCausalLM",
                                 .read = read_qwen2_moe,
                                 .build = build,
                                 .gguf = {.architecture = "qwen2moe", .has_experts = true, .describe = describe_qwen2_moe}},
                                {.architecture = "qwen3_moe",
                                 .class_name = "Qwen3MoeForCausalLM",
                                 .read = read_qwen3_moe,
                                 .build = build,
                                 .gguf = {.architecture = "qwen3moe", .has_experts = true, .describe = describe_qwen3_moe}}};

}  // namespace

std::span<const Family> qwen_families() { return kFamilies; }

}  // namespace lockstep::engine
