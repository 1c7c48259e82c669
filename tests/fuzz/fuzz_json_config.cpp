// config.json (also for its quantization_config), generation_config.json and tokenizer_config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "engine/weights/quantisation.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  engine::ModelSpec spec;
  spec.vocab_size = 257;
  try {
    spec = engine::spec_from_hf_config(text, "fuzz");
    const bool sane =
        spec.num_heads > 0 && spec.num_kv_heads > 0 && spec.num_heads % spec.num_kv_heads == 0 && spec.head_dim > 0 && spec.norm.eps > 0.0f;
    if (!sane) std::abort();
    if (spec.num_layers <= 8 && spec.experts.count <= 16) (void)engine::family_of(spec.architecture).build(spec);
  } catch (const std::exception&) {
  }
  try {
    engine::merge_generation_config(engine::generation_config_from_json(text, "fuzz"), "fuzz", spec);
  } catch (const std::exception&) {
  }
  try {
    engine::quantisation_from_config(text, "fuzz");
  } catch (const std::exception&) {
  }
  try {
    engine::chat_template_from_tokenizer_config(text, "fuzz");
  } catch (const std::exception&) {
  }
  return 0;
}
