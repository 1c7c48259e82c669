#include "engine/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/model/config_parts.h"
#include "engine/model/json_fields.h"
#include "engine/model/limits.h"
#include "engine/model/registry.h"
#include "engine/model/rope.h"
#include "engine/weights/json_input.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

std::string supported_names() {
  std::string names;
  for (const Family* family : all_families()) names += (names.empty() ? "" : ", ") + std::string(family->class_name);
  return "; supported: " + names;
}

/// By the name of the class, or by model_type where that is absent; the two must not contradict each other.
const Family& family_in(const JsonFields& fields) {
  const auto find = [](std::string_view name, auto member) -> const Family* {
    for (const Family* family : all_families()) {
      if (family->*member == name) return family;
    }
    return nullptr;
  };
  const std::string model_type = fields.text("model_type").value_or("");
  const Family* by_type = find(model_type, &Family::architecture);
  if (!model_type.empty() && by_type == nullptr) fields.fail("model_type", quote(model_type) + " is not supported" + supported_names());
  const json* architectures = fields.find("architectures");
  if (architectures == nullptr || architectures->empty()) {
    if (by_type == nullptr) fields.fail("architectures", "is missing, and model_type, too" + supported_names());
    return *by_type;
  }
  if (!architectures->is_array() || !architectures->front().is_string()) fields.fail("architectures", "a list of names is needed");
  const auto name = architectures->front().get<std::string>();
  const Family* by_class = find(name, &Family::class_name);
  if (by_class == nullptr) fields.fail("architectures", quote(name) + " is not supported" + supported_names());
  if (by_type != nullptr && by_type != by_class)
    fields.fail("model_type", quote(model_type) + " contradicts architectures, " + quote(name));
  return *by_class;
}

std::size_t read_head_dim(const JsonFields& fields, const ConfigKeys& keys, const ModelSpec& spec) {
  if (fields.find("head_dim") == nullptr && spec.hidden_size % spec.num_heads != 0) {
    fields.fail(keys.hidden_size, std::to_string(spec.hidden_size) + " is no multiple of " + keys.num_heads + ", " +
                                      std::to_string(spec.num_heads) + ", and there is no head_dim");
  }
  const std::size_t head_dim = fields.integer_or("head_dim", 2, SpecLimits::kHeadDim, spec.hidden_size / spec.num_heads);
  if (head_dim < 2 || head_dim > SpecLimits::kHeadDim) {
    fields.fail(keys.hidden_size, "makes a head of dimension " + std::to_string(head_dim) + "; from 2 to " +
                                      std::to_string(SpecLimits::kHeadDim) + " is possible");
  }
  return head_dim;
}

/// What every configuration has, under the names of the family.
void read_common(const JsonFields& fields, const ConfigKeys& keys, ModelSpec& spec) {
  spec.hidden_size = fields.integer(keys.hidden_size, 1, SpecLimits::kHiddenSize);
  spec.num_layers = fields.integer(keys.num_layers, 1, SpecLimits::kLayers);
  spec.num_heads = fields.integer(keys.num_heads, 1, SpecLimits::kHeads);
  spec.num_kv_heads = spec.num_heads;
  if (keys.num_kv_heads != nullptr) spec.num_kv_heads = fields.integer_or(keys.num_kv_heads, 1, SpecLimits::kHeads, spec.num_heads);
  spec.head_dim = read_head_dim(fields, keys, spec);
  if (keys.intermediate_size != nullptr) spec.intermediate_size = fields.integer(keys.intermediate_size, 1, SpecLimits::kIntermediateSize);
  spec.vocab_size = fields.integer("vocab_size", 1, SpecLimits::kVocabSize);
  spec.max_position_embeddings = keys.default_positions;
  if (keys.max_positions != nullptr)
    spec.max_position_embeddings = fields.integer_or(keys.max_positions, 1, SpecLimits::kPositions, keys.default_positions);
  spec.norm.kind = keys.norm;
  spec.norm.has_bias = keys.norm == device::Norm::Kind::kLayer;
  spec.norm.eps = static_cast<float>(keys.default_eps);
  if (keys.norm_eps != nullptr) spec.norm.eps = static_cast<float>(fields.number(keys.norm_eps, 0.0, 1.0).value_or(keys.default_eps));
  if (!(spec.norm.eps > 0.0f)) fields.fail(keys.norm_eps, "must be positive");
  spec.activation = keys.default_activation;
  if (keys.activation != nullptr) read_activation(fields, keys.activation, spec);
  if (keys.rotary) spec.rope = rope_from_config(fields, spec.head_dim, spec.max_position_embeddings);
  if (spec.rope.scaling == RopeScaling::kDynamic) {  // only this kind names the length before it is stretched
    const double stretched = static_cast<double>(spec.max_position_embeddings) * spec.rope.factor;
    spec.max_position_embeddings = static_cast<std::size_t>(std::min(stretched, static_cast<double>(SpecLimits::kPositions)));
  }
  spec.tie_word_embeddings = fields.flag_or("tie_word_embeddings", keys.tied);
}

void sort_and_unite(std::vector<std::int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

/// An unknown pad id does no harm, nothing is ever padded; the others are used.
void check_token_ids(const std::string& source, ModelSpec& spec) {
  const auto vocab_size = static_cast<std::int64_t>(spec.vocab_size);
  if (spec.pad_id >= vocab_size) spec.pad_id = -1;
  const auto check = [&](const char* key, std::int32_t id) {
    if (id >= vocab_size)
      throw std::runtime_error(source + ": " + key + ": " + std::to_string(id) + " is outside the vocabulary of " +
                               std::to_string(vocab_size));
  };
  check("bos_token_id", spec.bos_id);
  for (const std::int32_t id : spec.eos_ids) check("eos_token_id", id);
}

}  // namespace

ModelSpec spec_from_hf_config(std::string_view config_json, const std::string& source) {
  const json config = parse_json_object(config_json, source);
  const JsonFields fields(config, source);
  const Family& family = family_in(fields);

  ModelSpec spec;
  spec.architecture = family.architecture;
  spec.source = source;
  spec.naming = NamingScheme::kHuggingFace;
  read_common(fields, family.keys, spec);
  if (family.read != nullptr) family.read(fields, spec);
  spec.eos_ids = fields.token_ids("eos_token_id");
  sort_and_unite(spec.eos_ids);
  spec.bos_id = fields.token_id("bos_token_id");
  spec.pad_id = fields.token_id("pad_token_id");
  check_token_ids(source, spec);
  check_consistency(spec);
  return spec;
}

GenerationConfig generation_config_from_json(std::string_view text, const std::string& source) {
  const json config = parse_json_object(text, source);
  const JsonFields fields(config, source);
  const auto as_float = [](std::optional<double> value) { return value ? std::optional<float>(static_cast<float>(*value)) : std::nullopt; };
  GenerationConfig result;
  result.eos_ids = fields.token_ids("eos_token_id");
  result.bos_id = fields.token_id("bos_token_id");
  result.pad_id = fields.token_id("pad_token_id");
  result.defaults.temperature = as_float(fields.number("temperature", 0.0, 100.0));
  if (const auto top_k = fields.number("top_k", -1.0, 2147483647.0)) {
    if (*top_k != std::floor(*top_k)) fields.fail("top_k", "is " + std::to_string(*top_k) + "; a whole number is needed");
    result.defaults.top_k = static_cast<std::int32_t>(*top_k);
  }
  result.defaults.top_p = as_float(fields.number("top_p", 0.0, 1.0));
  result.defaults.min_p = as_float(fields.number("min_p", 0.0, 1.0));
  result.defaults.repetition_penalty = as_float(fields.number("repetition_penalty", 1e-6, 100.0));
  return result;
}

void merge_generation_config(const GenerationConfig& generation, const std::string& source, ModelSpec& spec) {
  spec.eos_ids.insert(spec.eos_ids.end(), generation.eos_ids.begin(), generation.eos_ids.end());
  sort_and_unite(spec.eos_ids);
  if (spec.bos_id < 0) spec.bos_id = generation.bos_id;
  if (spec.pad_id < 0) spec.pad_id = generation.pad_id;
  check_token_ids(source, spec);
}

std::string chat_template_from_tokenizer_config(std::string_view text, const std::string& source) {
  const json config = parse_json_object(text, source);
  const JsonFields fields(config, source);
  const json* found = fields.find("chat_template");
  if (found == nullptr) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) fields.fail("chat_template", "is a JSON " + std::string(found->type_name()) + "; a string or a list is needed");
  for (const json& entry : *found) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
                       entry["template"].is_string();
    if (!named) fields.fail("chat_template", "has an entry without 'name' and 'template'");
    if (entry["name"] == "default") return entry["template"].get<std::string>();
  }
  return "";
}

}  // namespace lockstep::engine
