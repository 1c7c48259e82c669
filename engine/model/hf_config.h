#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/spec.h"

namespace lockstep::engine {

/// generation_config.json: what the authors suggest, and the special tokens as it knows them.
struct GenerationConfig {
  GenerationDefaults defaults;
  std::vector<std::int32_t> eos_ids;  // as listed
  std::int32_t bos_id = -1;           // -1: not stated
  std::int32_t pad_id = -1;
};

/// The text of a config.json (as transformers 4 or 5 writes it) as a specification. `source` is the file, for messages.
/// @throws std::runtime_error that names file, key and value: missing, of the wrong kind, out of range, or not supported.
ModelSpec spec_from_hf_config(std::string_view config_json, const std::string& source);

/// The text of a generation_config.json. Errors as above.
GenerationConfig generation_config_from_json(std::string_view json, const std::string& source);

/// Adds the EOS ids of `generation` to those of the specification, and its BOS and pad ids where the specification has none.
/// @throws std::runtime_error that begins with `source` if an id is outside the vocabulary.
void merge_generation_config(const GenerationConfig& generation, const std::string& source, ModelSpec& spec);

/// The text of a tokenizer_config.json: its chat template, of a list the one named "default"; empty if there is none. Errors as above.
std::string chat_template_from_tokenizer_config(std::string_view json, const std::string& source);

}  // namespace lockstep::engine
