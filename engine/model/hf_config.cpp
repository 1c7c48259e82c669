#include "engine/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "engine/model/json_fields.h"
#include "engine/model/limits.h"
#include "engine/weights/json_input.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

constexpr double kLargestFloat = std::numeric_limits<float>::max();

void check_architecture(const JsonFields& fields) {
  constexpr std::string_view kSupported = "; supported: LlamaForCausalLM (model_type llama)";
  const std::string model_type = fields.text("model_type").value_or("");
  if (const json* architectures = fields.find("architectures"); architectures != nullptr && !architectures->empty()) {
    if (!architectures->is_array() || !architectures->front().is_string()) fields.fail("architectures", "a list of names is needed");
    const auto name = architectures->front().get<std::string>();
    if (name != "LlamaForCausalLM") fields.fail("architectures", quote(name) + " is not supported" + std::string(kSupported));
  } else if (model_type.empty()) {
    fields.fail("architectures", "is missing, and model_type, too" + std::string(kSupported));
  }
  if (!model_type.empty() && model_type != "llama")
    fields.fail("model_type", quote(model_type) + " is not supported" + std::string(kSupported));
}

/// Refuses what would change the result and is not done yet.
void refuse_unsupported(const JsonFields& fields) {
  const std::string activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") fields.fail("hidden_act", quote(activation) + " is not supported; supported: 'silu'");
  if (fields.number("partial_rotary_factor", 0.0, 1.0).value_or(1.0) != 1.0)
    fields.fail("partial_rotary_factor", "is not supported in this family");
}

/// `fields` is rope_scaling (transformers 4, where {} is as good as null) or rope_parameters (5).
void check_rope_kind(const JsonFields& fields) {
  const auto kind = fields.text("rope_type");
  const auto old_kind = fields.text("type");
  if (kind && old_kind && *kind != *old_kind) fields.fail("type", quote(*old_kind) + " contradicts rope_type, " + quote(*kind));
  const std::string stated = kind.value_or(old_kind.value_or("default"));
  if (stated != "default") fields.fail(kind ? "rope_type" : "type", quote(stated) + " is not supported yet; supported: 'default'");
  if (fields.find("factor") != nullptr && fields.number("factor", 0.0, kLargestFloat).value_or(1.0) != 1.0) {
    fields.fail("factor", "is set, but rope_type names no kind of scaling that uses it");
  }
  if (fields.number("partial_rotary_factor", 0.0, 1.0).value_or(1.0) != 1.0)
    fields.fail("partial_rotary_factor", "is not supported in this family");
}

double read_rope_theta(const JsonFields& fields) {
  constexpr double kMin = 1.0;
  std::optional<double> theta = fields.number("rope_theta", kMin, SpecLimits::kRopeTheta);
  if (const auto scaling = fields.object("rope_scaling")) check_rope_kind(*scaling);
  if (const auto parameters = fields.object("rope_parameters")) {
    check_rope_kind(*parameters);
    const auto inner = parameters->number("rope_theta", kMin, SpecLimits::kRopeTheta);
    if (inner && theta && *inner != *theta) parameters->fail("rope_theta", "contradicts the rope_theta beside rope_parameters");
    if (inner) theta = inner;
  }
  return theta.value_or(10000.0);
}

float read_rms_norm_eps(const JsonFields& fields) {
  const auto eps = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0).value_or(1e-6));
  if (!(eps > 0.0f)) fields.fail("rms_norm_eps", "must be positive");
  return eps;
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
  check_architecture(fields);
  refuse_unsupported(fields);

  ModelSpec spec;
  spec.architecture = "llama";
  spec.source = source;
  spec.naming = NamingScheme::kHuggingFace;
  spec.hidden_size = fields.integer("hidden_size", 1, SpecLimits::kHiddenSize);
  spec.num_layers = fields.integer("num_hidden_layers", 1, SpecLimits::kLayers);
  spec.num_heads = fields.integer("num_attention_heads", 1, SpecLimits::kHeads);
  spec.num_kv_heads = fields.integer_or("num_key_value_heads", 1, SpecLimits::kHeads, spec.num_heads);
  if (fields.find("head_dim") == nullptr && spec.hidden_size % spec.num_heads != 0) {
    fields.fail("hidden_size", std::to_string(spec.hidden_size) + " is no multiple of num_attention_heads, " +
                                   std::to_string(spec.num_heads) + ", and there is no head_dim");
  }
  spec.head_dim = fields.integer_or("head_dim", 2, SpecLimits::kHeadDim, spec.hidden_size / spec.num_heads);
  if (spec.head_dim < 2 || spec.head_dim > SpecLimits::kHeadDim) {
    fields.fail("hidden_size", "makes a head of dimension " + std::to_string(spec.head_dim) + "; from 2 to " +
                                   std::to_string(SpecLimits::kHeadDim) + " is possible");
  }
  spec.intermediate_size = fields.integer("intermediate_size", 1, SpecLimits::kIntermediateSize);
  spec.vocab_size = fields.integer("vocab_size", 1, SpecLimits::kVocabSize);
  spec.max_position_embeddings = fields.integer_or("max_position_embeddings", 1, SpecLimits::kPositions, 2048);
  spec.rms_norm_eps = read_rms_norm_eps(fields);
  spec.rope.theta = read_rope_theta(fields);
  spec.rope.rotary_dim = spec.head_dim;
  spec.attention_bias = fields.flag_or("attention_bias", false);
  spec.attention_output_bias = spec.attention_bias;
  spec.mlp_bias = fields.flag_or("mlp_bias", false);
  spec.tie_word_embeddings = fields.flag_or("tie_word_embeddings", false);
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
