#include "engine/model/gguf_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/model/limits.h"
#include "engine/model/registry.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

std::string range_text(std::uint64_t min, std::uint64_t max) {
  return "; from " + std::to_string(min) + " to " + std::to_string(max) + " is possible";
}

std::optional<std::uint64_t> optional_size(const GgufMetadata& metadata, std::string_view key, std::uint64_t min, std::uint64_t max) {
  const auto value = metadata.unsigned_integer(key);
  if (value && (*value < min || *value > max)) metadata.fail(key, "is " + std::to_string(*value) + range_text(min, max));
  return value;
}

std::uint64_t required_size(const GgufMetadata& metadata, std::string_view key, std::uint64_t min, std::uint64_t max) {
  const auto value = optional_size(metadata, key, min, max);
  if (!value) metadata.fail(key, "is missing");
  return *value;
}

/// -1 if absent, or where the file writes -1 as an unsigned number.
std::int32_t token_id(const GgufMetadata& metadata, std::string_view key) {
  const auto id = metadata.integer(key);
  if (!id || *id == -1 || *id == std::numeric_limits<std::uint32_t>::max()) return -1;
  if (*id < 0 || *id > std::numeric_limits<std::int32_t>::max()) metadata.fail(key, "is " + std::to_string(*id) + ", which is no token id");
  return static_cast<std::int32_t>(*id);
}

int flag_or_unknown(const GgufMetadata& metadata, std::string_view key) {
  const auto flag = metadata.flag(key);
  return flag ? static_cast<int>(*flag) : -1;
}

/// "llama.rope.freq_base" and so on: keys begin with the architecture.
class Keys {
 public:
  explicit Keys(std::string_view architecture) : prefix_(std::string(architecture) + ".") {}
  std::string operator()(std::string_view key) const { return prefix_ + std::string(key); }

 private:
  std::string prefix_;
};

/// Refuses what would change the result and is not done yet.
void refuse_unsupported(const GgufFile& file, const Keys& keys) {
  const GgufMetadata& metadata = file.metadata;
  for (const std::string& key : {keys("expert_count")}) {
    const double value = metadata.number(key).value_or(0.0);
    if (value != 0.0) metadata.fail(key, "is " + std::to_string(value) + ", which is not supported yet");
  }
  for (const std::string& key :
       {keys("attention.scale"), keys("attention.clamp_kqv"), keys("logit_scale"), keys("residual_scale"), keys("embedding_scale")}) {
    if (metadata.contains(key)) metadata.fail(key, "is not supported");
  }
}

/// Scaling as the metadata state it, or as a tensor that divides the frequencies.
void read_rope(const GgufFile& file, const Keys& keys, ModelSpec& spec) {
  const GgufMetadata& metadata = file.metadata;
  spec.rope.rotary_dim = optional_size(metadata, keys("rope.dimension_count"), 2, SpecLimits::kHeadDim).value_or(spec.head_dim);
  const std::string theta = keys("rope.freq_base");
  spec.rope.theta = metadata.number(theta).value_or(10000.0);
  if (!(spec.rope.theta >= 1.0 && spec.rope.theta <= SpecLimits::kRopeTheta))
    metadata.fail(theta, "is " + std::to_string(spec.rope.theta) + "; from 1 to 1e15 is possible");
  const std::string* scaling = metadata.text(keys("rope.scaling.type"));
  const auto factor_of = [&](const std::string& key) {
    const double factor = metadata.number(key).value_or(1.0);
    if (!(factor >= 0.0 && factor <= 1e9)) metadata.fail(key, "is " + std::to_string(factor) + "; a positive number is needed");
    return factor == 0.0 ? 1.0 : factor;
  };
  const double factor = std::max(factor_of(keys("rope.scaling.factor")), factor_of(keys("rope.scale_linear")));
  if (scaling != nullptr && *scaling != "none" && *scaling != "linear" && *scaling != "yarn") {
    metadata.fail(keys("rope.scaling.type"), "is " + quote(*scaling) + ", which is not supported; supported: 'none', 'linear', 'yarn'");
  }
  // What an attention factor is a factor of, its users do not agree on.
  for (const auto& [key, neutral] : {std::pair{"attn_factor", 1.0}, {"yarn_attn_factor", 1.0}, {"yarn_log_multiplier", 0.0}}) {
    const std::string full = keys("rope.scaling.") + key;
    const double value = metadata.number(full).value_or(neutral);
    if (value != neutral) metadata.fail(full, "is " + std::to_string(value) + ", which is not supported");
  }
  if (scaling != nullptr && *scaling == "yarn") {
    spec.rope.scaling = RopeScaling::kYarn;
    spec.rope.original_positions = optional_size(metadata, keys("rope.scaling.original_context_length"), 1, SpecLimits::kPositions)
                                       .value_or(spec.max_position_embeddings);
    const auto turns = [&](const std::string& key, double absent) {
      const double value = metadata.number(key).value_or(absent);
      if (!(value >= 1e-6 && value <= 1e9)) metadata.fail(key, "is " + std::to_string(value) + "; a positive number is needed");
      return value;
    };
    spec.rope.beta_fast = turns(keys("rope.scaling.yarn_beta_fast"), spec.rope.beta_fast);
    spec.rope.beta_slow = turns(keys("rope.scaling.yarn_beta_slow"), spec.rope.beta_slow);
  } else if (factor != 1.0 && (scaling == nullptr || *scaling == "linear")) {
    spec.rope.scaling = RopeScaling::kLinear;
  }
  spec.rope.factor = factor;
  constexpr std::string_view kDivisors = "rope_freqs.weight";
  if (!file.tensors->contains(kDivisors)) return;
  const std::array<std::size_t, 1> shape{spec.rope.rotary_dim / 2};
  const StoredTensor& divisors = file.tensors->require(kDivisors, shape);
  if (divisors.dtype != device::DType::kF32) throw std::runtime_error(metadata.source() + ": tensor 'rope_freqs.weight' must be F32");
  spec.rope.divisors.resize(shape[0]);
  file.tensors->read(divisors, 0, std::as_writable_bytes(std::span(spec.rope.divisors)));
  for (const float divisor : spec.rope.divisors) {
    if (!(divisor > 0.0f && divisor <= 1e9f))
      throw std::runtime_error(metadata.source() + ": tensor 'rope_freqs.weight' has a value that is no positive number");
  }
}

/// Whether all of these tensors are there in every layer. @throws if only some are.
bool in_every_layer(const GgufFile& file, std::size_t num_layers, std::span<const std::string_view> names) {
  std::size_t found = 0;
  std::string missing;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    for (const std::string_view name : names) {
      const std::string full = "blk." + std::to_string(layer) + "." + std::string(name);
      if (file.tensors->contains(full)) {
        ++found;
      } else if (missing.empty()) {
        missing = full;
      }
    }
  }
  if (found != 0 && !missing.empty()) {
    throw std::runtime_error(file.metadata.source() + ": tensor " + quote(missing) +
                             " is missing, while other layers or projections have such a bias");
  }
  return found != 0;
}

std::size_t read_vocab_size(const GgufMetadata& metadata, const Keys& keys) {
  const std::string key = keys("vocab_size");
  const auto stated = optional_size(metadata, key, 1, SpecLimits::kVocabSize);
  const std::vector<std::string>* tokens = metadata.texts(kTokens);
  if (!stated && tokens == nullptr) metadata.fail(key, "is missing, and " + std::string(kTokens) + ", too");
  if (stated && tokens != nullptr && tokens->size() > *stated) {
    metadata.fail(
        key, "is " + std::to_string(*stated) + ", less than the " + std::to_string(tokens->size()) + " tokens of " + std::string(kTokens));
  }
  if (stated) return *stated;
  if (tokens->empty() || tokens->size() > SpecLimits::kVocabSize) {
    metadata.fail(kTokens, "has " + std::to_string(tokens->size()) + " entries" + range_text(1, SpecLimits::kVocabSize));
  }
  return tokens->size();
}

void read_special_tokens(const GgufMetadata& metadata, ModelSpec& spec) {
  const auto vocab_size = static_cast<std::int64_t>(spec.vocab_size);
  const auto checked = [&](std::string_view key) {
    const std::int32_t id = token_id(metadata, key);
    if (id >= vocab_size) metadata.fail(key, "is " + std::to_string(id) + ", outside the vocabulary of " + std::to_string(vocab_size));
    return id;
  };
  spec.bos_id = checked("tokenizer.ggml.bos_token_id");
  std::set<std::int32_t> eos;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    eos.insert(checked(key));
  eos.erase(-1);
  spec.eos_ids.assign(eos.begin(), eos.end());
  const std::int32_t pad = token_id(metadata, "tokenizer.ggml.padding_token_id");
  spec.pad_id = pad < vocab_size ? pad : -1;
}

std::size_t read_head_dim(const GgufMetadata& metadata, const Keys& keys, const ModelSpec& spec) {
  const std::string key = keys("attention.key_length");
  const std::string value_key = keys("attention.value_length");
  const auto stated = optional_size(metadata, key, 2, SpecLimits::kHeadDim);
  if (!stated && (spec.hidden_size % spec.num_heads != 0 || spec.hidden_size / spec.num_heads < 2)) {
    metadata.fail(keys("embedding_length"), "is " + std::to_string(spec.hidden_size) + ", which " + std::to_string(spec.num_heads) +
                                                " heads cannot share evenly, and there is no " + key);
  }
  const std::size_t head_dim = stated.value_or(spec.hidden_size / spec.num_heads);
  if (head_dim > SpecLimits::kHeadDim) metadata.fail(keys("embedding_length"), "makes a head of dimension " + std::to_string(head_dim));
  const auto value_length = optional_size(metadata, value_key, 1, SpecLimits::kHeadDim);
  if (value_length.value_or(head_dim) != head_dim) {
    metadata.fail(value_key, "is " + std::to_string(*value_length) + ", not the dimension of keys, " + std::to_string(head_dim) +
                                 ", which is not supported");
  }
  return head_dim;
}

const Family& family_in(const GgufMetadata& metadata, const std::string& architecture) {
  std::string known;
  for (const Family* family : all_families()) {
    if (family->gguf.empty()) continue;
    if (family->gguf == architecture) return *family;
    known += (known.empty() ? "'" : ", '") + std::string(family->gguf) + "'";
  }
  metadata.fail("general.architecture", "is " + quote(architecture) + ", which is not supported; supported: " + known);
}

}  // namespace

ModelSpec spec_from_gguf(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata;
  const std::string* architecture = metadata.text("general.architecture");
  if (architecture == nullptr) metadata.fail("general.architecture", "is missing");
  const Family& family = family_in(metadata, *architecture);
  const Keys keys(*architecture);
  refuse_unsupported(file, keys);

  ModelSpec spec;
  spec.architecture = family.architecture;
  spec.source = metadata.source();
  spec.naming = NamingScheme::kGguf;
  spec.rotary_pairs_interleaved = family.gguf_pairs_interleaved;
  spec.hidden_size = required_size(metadata, keys("embedding_length"), 1, SpecLimits::kHiddenSize);
  spec.num_layers = required_size(metadata, keys("block_count"), 1, SpecLimits::kLayers);
  spec.num_heads = required_size(metadata, keys("attention.head_count"), 1, SpecLimits::kHeads);
  spec.num_kv_heads = optional_size(metadata, keys("attention.head_count_kv"), 1, SpecLimits::kHeads).value_or(spec.num_heads);
  spec.head_dim = read_head_dim(metadata, keys, spec);
  spec.intermediate_size = required_size(metadata, keys("feed_forward_length"), 1, SpecLimits::kIntermediateSize);
  spec.max_position_embeddings = required_size(metadata, keys("context_length"), 1, SpecLimits::kPositions);
  spec.vocab_size = read_vocab_size(metadata, keys);
  if (family.keys.rotary) read_rope(file, keys, spec);
  if (const auto window = optional_size(metadata, keys("attention.sliding_window"), 0, SpecLimits::kPositions); window.value_or(0) != 0)
    spec.windows.assign(spec.num_layers, static_cast<std::uint32_t>(*window));

  spec.norm.kind = family.keys.norm;
  spec.norm.has_bias = family.keys.norm == device::Norm::Kind::kLayer;
  spec.activation = family.keys.default_activation;
  const std::string eps_key = keys(spec.norm.has_bias ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
  const auto eps = metadata.number(eps_key);
  if (!eps) metadata.fail(eps_key, "is missing");
  spec.norm.eps = *eps > 0.0 && *eps <= 1.0 ? static_cast<float>(*eps) : 0.0f;
  if (!(spec.norm.eps > 0.0f)) metadata.fail(eps_key, "is " + std::to_string(*eps) + "; a positive number up to 1 is needed");

  spec.tie_word_embeddings = !file.tensors->contains("output.weight");
  if (family.read_gguf != nullptr) family.read_gguf(file, spec);
  read_special_tokens(metadata, spec);
  check_consistency(spec);
  return spec;
}

void biases_from_tensors(const GgufFile& file, ModelSpec& spec) {
  constexpr std::array<std::string_view, 3> kAttention{"attn_q.bias", "attn_k.bias", "attn_v.bias"};
  constexpr std::array<std::string_view, 1> kOutput{"attn_output.bias"};
  constexpr std::array<std::string_view, 3> kMlp{"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"};
  spec.attention_bias = in_every_layer(file, spec.num_layers, kAttention);
  spec.attention_output_bias = in_every_layer(file, spec.num_layers, kOutput);
  spec.mlp_bias = in_every_layer(file, spec.num_layers, kMlp);
}

std::optional<text::GgufVocabulary> vocabulary_from_gguf(const GgufMetadata& metadata) {
  const std::vector<std::string>* tokens = metadata.texts(kTokens);
  if (tokens == nullptr) return std::nullopt;
  const auto text_or_empty = [&](std::string_view key) {
    const std::string* text = metadata.text(key);
    return text == nullptr ? std::string() : *text;
  };
  text::GgufVocabulary vocabulary;
  vocabulary.source = metadata.source();
  vocabulary.model = text_or_empty("tokenizer.ggml.model");
  vocabulary.pre = text_or_empty("tokenizer.ggml.pre");
  vocabulary.tokens = *tokens;
  if (const auto* merges = metadata.texts("tokenizer.ggml.merges")) vocabulary.merges = *merges;
  constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
  if (const auto types = metadata.integers(kTypes)) {
    if (types->size() != tokens->size()) {
      metadata.fail(kTypes, "has " + std::to_string(types->size()) + " entries for " + std::to_string(tokens->size()) + " tokens");
    }
    for (const std::int64_t type : *types) {
      if (type < 0 || type > 6) metadata.fail(kTypes, "has an entry " + std::to_string(type) + range_text(0, 6));
      vocabulary.types.push_back(static_cast<std::int32_t>(type));
    }
  }
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  if (const auto scores = vocabulary.model == "llama" ? metadata.numbers(kScores) : std::nullopt) {
    if (scores->size() != tokens->size())
      metadata.fail(kScores, "has " + std::to_string(scores->size()) + " entries for " + std::to_string(tokens->size()) + " tokens");
    vocabulary.scores.assign(scores->begin(), scores->end());
  }
  vocabulary.bos_id = token_id(metadata, "tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = token_id(metadata, "tokenizer.ggml.eos_token_id");
  vocabulary.eot_id = token_id(metadata, "tokenizer.ggml.eot_token_id");
  vocabulary.pad_id = token_id(metadata, "tokenizer.ggml.padding_token_id");
  vocabulary.unknown_id = token_id(metadata, "tokenizer.ggml.unknown_token_id");
  vocabulary.add_bos = flag_or_unknown(metadata, "tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = flag_or_unknown(metadata, "tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = flag_or_unknown(metadata, "tokenizer.ggml.add_space_prefix");
  return vocabulary;
}

}  // namespace lockstep::engine
