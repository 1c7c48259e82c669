// SmolLM3: Llama blocks of which some rotate nothing.
// Source: Hugging Face transformers (SmolLM3Config). no_rope_layers[i] == 1 means that the layer is rotated.

#include "engine/model/blocks.h"
#include "engine/model/config_parts.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"

namespace lockstep::engine {
namespace {

void read(const JsonFields& fields, ModelSpec& spec) {
  read_attention_bias(fields, false, true, spec);
  spec.mlp_bias = fields.flag_or("mlp_bias", false);
  if (fields.flag_or("use_sliding_window", false)) read_windows(fields, every_layer_slides, spec);
  const std::size_t interval = fields.integer_or("no_rope_layer_interval", 1, SpecLimits::kLayers, 4);
  const std::vector<std::size_t> stated = layer_list(fields, "no_rope_layers");
  if (!stated.empty() && stated.size() != spec.num_layers) fields.fail("no_rope_layers", "one entry for each layer is needed");
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer)
    spec.rotated.push_back(stated.empty() ? (layer + 1) % interval != 0 : stated[layer] != 0);
}

parallel::Graph build(const ModelSpec& spec) { return build_decoder(spec); }

/// No key says which layers rotate: all but every fourth.
void describe(GgufKeys&, ModelSpec& spec) {
  spec.rotated.clear();
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) spec.rotated.push_back((layer + 1) % 4 != 0);
}

constexpr Family kFamilies[] = {{.architecture = "smollm3",
                                 .class_name = "SmolLM3ForCausalLM",
                                 .keys = {.default_positions = 32768, .tied = true},
                                 .read = read,
                                 .build = build,
                                 .gguf = {.architecture = "smollm3", .pairs_interleaved = true, .describe = describe}}};

}  // namespace

std::span<const Family> smollm3_families() { return kFamilies; }

}  // namespace lockstep::engine
