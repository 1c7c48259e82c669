#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/gguf_keys.h"
#include "engine/model/json_fields.h"
#include "engine/model/spec.h"
#include "parallel/graph.h"

namespace lockstep::engine {

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

/// What GGUF files of a family say other than the configurations of Hugging Face. (How tensors are called there is known to GraphBuilder,
/// which keys all files have to describe_gguf.)
struct GgufForm {
  std::string_view architecture = {};  // general.architecture; empty: there are no such files
  bool has_experts = false;            // of two families of one architecture, the one with experts
  bool rotary = true;
  bool pairs_interleaved = false;  // rows of q and k are in the order of rotary pairs
  std::size_t window_period = 0;   // where the file does not name the layers that slide: all but every n-th; 0: all
  std::size_t window = 0;          // where the file states none
  /// What else: called to read a file and to write one, see GgufKeys. May be null.
  void (*describe)(GgufKeys& keys, ModelSpec& spec) = nullptr;
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
  GgufForm gguf = {};
};

/// @throws std::runtime_error that names the architecture and those that are supported.
const Family& family_of(const std::string& architecture);
/// All of them.
std::span<const Family* const> all_families();

// One function a file of engine/model that has families.
std::span<const Family> bloom_families();
std::span<const Family> cohere_families();
std::span<const Family> gemma_families();
std::span<const Family> glm_families();
std::span<const Family> gpt2_families();
std::span<const Family> gpt_neox_families();
std::span<const Family> gpt_oss_families();
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
