#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/json_fields.h"
#include "engine/model/spec.h"
#include "engine/weights/gguf.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// A module's name in the two kinds of files; `{}` stands for the layer.
struct ModuleNames {
  std::string_view hugging_face;
  std::string_view gguf;
};

/// What a family calls the numbers that every configuration has, and what it takes for granted where they are absent. A null key: the
/// configuration has no such number, or the family reads it itself.
struct ConfigKeys {
  const char* hidden_size = "hidden_size";
  const char* num_layers = "num_hidden_layers";
  const char* num_heads = "num_attention_heads";
  const char* num_kv_heads = "num_key_value_heads";
  const char* intermediate_size = "intermediate_size";
  const char* max_positions = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
  std::size_t default_positions = 2048;
  double default_eps = 1e-6;
  device::Norm::Kind norm = device::Norm::Kind::kRms;
  device::Nonlinearity default_activation = device::Nonlinearity::kSilu;
  bool rotary = true;  // rope_theta and so on
  bool tied = false;   // tie_word_embeddings
};

/// A family of models: how its configuration becomes a graph. Everything else about it is data in the graph.
struct Family {
  std::string_view architecture;  // its name, and the model_type of Hugging Face configurations
  std::string_view class_name;    // in "architectures" there
  ConfigKeys keys = {};
  /// What its configuration has beside the keys; may be null.
  void (*read)(const JsonFields& fields, ModelSpec& spec) = nullptr;
  parallel::Graph (*build)(const ModelSpec& spec) = nullptr;
  /// What the names of all tensors but the head begin with; checkpoints of the bare model lack it.
  std::string_view base_prefix = {};
  /// Names in GGUF files, where general.architecture is `gguf`; none: such files are refused.
  std::string_view gguf = {};
  std::span<const ModuleNames> modules = {};
  /// The converter of such files put rows of q and k in the order of rotary pairs.
  bool gguf_pairs_interleaved = false;
  /// What a GGUF file's spec has beside what all have; may be null.
  void (*read_gguf)(const GgufFile& file, ModelSpec& spec) = nullptr;
};

/// @throws std::runtime_error that names the architecture and those that are supported.
const Family& family_of(const std::string& architecture);
/// All of them.
std::span<const Family* const> all_families();

/// The name in the model's files of a tensor with this canonical (Hugging Face) name.
std::string stored_name(const Family& family, const ModelSpec& spec, std::string_view canonical);

// One function a file of engine/model that has families.
std::span<const Family> bloom_families();
std::span<const Family> cohere_families();
std::span<const Family> gemma_families();
std::span<const Family> glm_families();
std::span<const Family> gpt2_families();
std::span<const Family> gpt_neox_families();
std::span<const Family> granite_families();
std::span<const Family> llama_families();
std::span<const Family> mistral_families();
std::span<const Family> olmo2_families();
std::span<const Family> opt_families();
std::span<const Family> phi_families();
std::span<const Family> phi3_families();
std::span<const Family> qwen_families();
std::span<const Family> smollm3_families();
std::span<const Family> stablelm_families();
std::span<const Family> starcoder2_families();

}  // namespace lockstep::engine
