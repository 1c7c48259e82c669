#include "engine/model/gguf_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>

#include "engine/model/gguf_keys.h"
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

std::string number_text(double value) {
  std::string text = std::to_string(value);
  text.erase(std::max(text.find_last_not_of('0'), text.find('.') + 1) + 1);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

/// Keys that change what is computed: a family that does not know one of them must not be read as if it were not there. Zero says nothing.
constexpr std::array kConsequential{"attention.scale",
                                    "attention.clamp_kqv",
                                    "attention.max_alibi_bias",
                                    "attn_logit_softcapping",
                                    "final_logit_softcapping",
                                    "router_logit_softcapping",
                                    "embedding_scale",
                                    "residual_scale",
                                    "logit_scale",
                                    "expert_count",
                                    "expert_shared_feed_forward_length",
                                    "expert_group_count",
                                    "expert_weights_scale",
                                    "leading_dense_block_count",
                                    "nextn_predict_layers",
                                    "rope.freq_base_swa",
                                    "rope.scaling.alpha",
                                    "rope.scaling.yarn_log_multiplier"};
/// Likewise where the number is not 1.
constexpr std::array kConsequentialFactors{"expert_gating_func", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
                                           "rope.scaling.yarn_ext_factor"};

class GgufKeyReader final : public GgufKeys {
 public:
  GgufKeyReader(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  bool writing() const override { return false; }

  void size(const std::string& key, std::size_t& value, Range range, std::optional<std::size_t> absent) override {
    const std::string full = named(key);
    const auto stated = optional_size(metadata(), full, static_cast<std::uint64_t>(range.min), static_cast<std::uint64_t>(range.max));
    if (!stated && !absent) metadata().fail(full, "is missing");
    value = stated ? static_cast<std::size_t>(*stated) : *absent;
  }

  void number(const std::string& key, double& value, Range range, std::optional<double> absent) override {
    const std::string full = named(key);
    const auto stated = metadata().number(full);
    if (!stated && !absent) metadata().fail(full, "is missing");
    if (stated && !(*stated >= range.min && *stated <= range.max)) {
      std::ostringstream limits;
      limits << "; from " << range.min << " to " << range.max << " is possible";
      metadata().fail(full, "is " + number_text(*stated) + limits.str());
    }
    value = stated.value_or(absent.value_or(0.0));
  }

  void flag(const std::string& key, bool& value, bool absent) override { value = metadata().flag(named(key)).value_or(absent); }

  void text(const std::string& key, std::string& value, const std::string& absent) override {
    const std::string* stated = metadata().text(named(key));
    value = stated == nullptr ? absent : *stated;
  }

  /// A list, or a period n: all but every n-th.
  void layers(const std::string& key, std::vector<bool>& value, const std::vector<bool>& absent) override {
    const std::string full = named(key);
    const std::size_t count = absent.size();
    value = absent;
    if (!metadata().contains(full)) return;
    if (metadata().is_array(full)) {
      const auto flags = *metadata().integers(full);
      if (flags.size() != count)
        metadata().fail(full, "has " + std::to_string(flags.size()) + " entries for " + std::to_string(count) + " layers");
      for (std::size_t layer = 0; layer < count; ++layer) value[layer] = flags[layer] != 0;
      return;
    }
    const std::uint64_t period = *optional_size(metadata(), full, 0, SpecLimits::kLayers);
    for (std::size_t layer = 0; layer < count; ++layer) value[layer] = period == 0 || layer % period != period - 1;
  }

  void tensor(const std::string& name, std::vector<float>& values, std::size_t size) override {
    values.clear();
    if (!file_.tensors->contains(name)) return;
    const StoredTensor& stored = file_.tensors->require(name, std::array{size});
    const auto refuse = [&](const char* what) { throw std::runtime_error(metadata().source() + ": tensor " + quote(name) + what); };
    if (stored.dtype != device::DType::kF32) refuse(" must be F32");
    values.resize(size);
    file_.tensors->read(stored, 0, std::as_writable_bytes(std::span(values)));
    for (const float value : values)
      if (!(value > 0.0f && value <= 1e9f)) refuse(" has a value that is no positive number");
  }

  bool has_tensor(const std::string& name, bool) const override { return file_.tensors->contains(name); }

  void fail(const std::string& key, const std::string& message) const override {
    if (key.empty()) throw std::runtime_error(metadata().source() + ": " + message);
    metadata().fail(prefix_ + key, message);
  }

  /// @throws if a key that would change the result was not asked for.
  void refuse_unknown() const {
    const auto refuse = [&](const std::string& key, double neutral) {
      const std::string full = prefix_ + key;
      if (asked_.contains(full) || !metadata().contains(full)) return;
      const double value = metadata().number(full).value_or(neutral);
      if (value != neutral) metadata().fail(full, "is " + number_text(value) + ", which is not supported in this architecture");
    };
    for (const char* key : kConsequential) refuse(key, 0.0);
    for (const char* key : kConsequentialFactors) refuse(key, 1.0);
  }

 private:
  const GgufMetadata& metadata() const { return file_.metadata; }
  std::string named(const std::string& key) { return *asked_.insert(prefix_ + key).first; }

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string> asked_;
};

std::size_t read_vocab_size(const GgufMetadata& metadata, const std::string& architecture) {
  const std::string key = architecture + ".vocab_size";
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

const Family& family_in(const GgufMetadata& metadata, const std::string& architecture) {
  const bool has_experts = optional_size(metadata, architecture + ".expert_count", 0, SpecLimits::kExperts).value_or(0) > 0;
  std::set<std::string> known;
  const Family* without_experts = nullptr;
  for (const Family* family : all_families()) {
    if (family->gguf.architecture == architecture && family->gguf.has_experts == has_experts) return *family;
    if (family->gguf.architecture == architecture) without_experts = family;
    if (!family->gguf.architecture.empty()) known.insert(quote(family->gguf.architecture));
  }
  if (without_experts != nullptr) return *without_experts;
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  metadata.fail("general.architecture", "is " + quote(architecture) + ", which is not supported; supported: " + names);
}

}  // namespace

ModelSpec spec_from_gguf(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata;
  const std::string* architecture = metadata.text("general.architecture");
  if (architecture == nullptr) metadata.fail("general.architecture", "is missing");
  const Family& family = family_in(metadata, *architecture);
  ModelSpec spec;
  spec.architecture = family.architecture;
  spec.source = metadata.source();
  GgufKeyReader keys(file, *architecture);
  describe_gguf(keys, family, spec);
  keys.refuse_unknown();
  spec.vocab_size = read_vocab_size(metadata, *architecture);
  read_special_tokens(metadata, spec);
  check_consistency(spec);
  return spec;
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
