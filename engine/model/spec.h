#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"

namespace lockstep::engine {

/// How the tensors of a model are named.
enum class NamingScheme : std::uint8_t {
  kHuggingFace,  // "model.layers.0.self_attn.q_proj.weight"
  kGguf,         // "blk.0.attn_q.weight"
};

/// How rotary frequencies differ from the plain ones.
enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongrope };

/// Rotary position embedding. Members of a kind are of interest for that kind alone; rope.h turns them into frequencies.
struct RopeSpec {
  double theta = 10000.0;      // pair i of r/2 turns by position * theta^(-2i / r)
  std::size_t rotary_dim = 0;  // r: the first dims of a head that are rotated; even, at most head_dim; 0: nothing is rotated

  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                     // all but longrope: how many times longer sequences are than in training
  std::size_t original_positions = 0;      // the length of training sequences
  double low_frequency_factor = 1.0;       // llama3
  double high_frequency_factor = 4.0;      // llama3
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  bool truncate = true;                    // yarn: the correction range ends at whole dims
  std::optional<double> attention_factor;  // yarn, longrope: of cos and sin; absent: as the kind says
  std::optional<double> mscale;            // yarn
  std::optional<double> mscale_all_dim;    // yarn
  std::vector<double> short_factors;       // longrope: [r / 2]
  std::vector<double> long_factors;        // longrope: [r / 2]
  std::vector<float> divisors;             // [r / 2] or none: frequencies are divided by these (the tensor rope_freqs of GGUF files)
};

/// The norms of a model.
struct NormSpec {
  device::Norm::Kind kind = device::Norm::Kind::kRms;
  float eps = 0.0f;
  bool has_weight = true;
  bool has_bias = false;
  float weight_offset = 0.0f;  // 1: the stored weight is what is added to one
};

/// A mixture of experts.
struct ExpertSpec {
  std::size_t count = 0;  // 0: there is none
  std::size_t per_token = 0;
  std::size_t intermediate_size = 0;         // of an expert
  std::size_t shared_intermediate_size = 0;  // of the expert that every token goes through; 0: there is none
  bool renormalised = false;
  bool bias = false;          // of the router, and of gate, up and down of each expert
  bool stored_in_out = true;  // where one tensor has all experts: each stands there as [in, out]; false: as rows
  std::vector<bool> layers;   // [num_layers]: which have experts
};

/// What a model is, whichever kind of file said so. Values are in range: positive sizes with sane upper bounds, num_heads a multiple of
/// num_kv_heads.
struct ModelSpec {
  std::string architecture;  // the family: a name of the registry
  std::string source;        // the file that the values are from, for messages

  std::size_t hidden_size = 0;
  std::size_t num_layers = 0;
  std::size_t num_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;  // need not be hidden_size / num_heads
  std::size_t intermediate_size = 0;
  std::size_t vocab_size = 0;
  std::size_t embedding_size = 0;  // columns of the embedding and of the head, between which and x there are projections; 0: hidden_size
  std::size_t max_position_embeddings = 0;
  NormSpec norm;
  RopeSpec rope;
  device::Nonlinearity activation = device::Nonlinearity::kSilu;
  float activation_limit = std::numeric_limits<float>::infinity();  // of gate and up, see device::Gating
  float up_offset = 0.0f;                                           // likewise
  ExpertSpec experts;

  bool attention_bias = false;         // of the q, k and v projections
  bool attention_output_bias = false;  // of the o projection
  bool mlp_bias = false;               // of gate, up and down
  bool head_bias = false;
  bool attention_sinks = false;      // a learned score of each query head
  bool head_norms = false;           // of each query and key head, before they are rotated
  bool parallel_residual = false;    // attention and feed-forward of a layer read the same x
  bool norms_of_sums = false;        // the norms of a layer are of what x is once a branch was added, and become x
  bool final_norm = true;            // before the head
  bool tie_word_embeddings = false;  // the embedding is the head too; a head tensor that is there all the same is not read

  // Layer by layer; empty: alike in all of them.
  std::vector<std::uint32_t> windows;  // see device::AttentionSpec; empty: none
  std::vector<bool> rotated;           // which layers rotate queries and keys; empty: all
  std::optional<RopeSpec> local_rope;  // of layers with a window, where it differs

  // Numbers that some families put in.
  float attention_scale = 0.0f;  // of the scores; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0.0f;
  float logit_soft_cap = 0.0f;
  float embedding_scale = 1.0f;
  std::vector<float> slopes;  // [num_heads]: ALiBi
  float residual_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_divisor = 1.0f;

  NamingScheme naming = NamingScheme::kHuggingFace;
  std::string absent_prefix = {};       // of the family's names of tensors, which those of this model lack
  std::optional<bool> joined_qkv = {};  // GGUF files: q, k and v of a layer are one tensor; absent: as the family has it elsewhere
  /// The rows of q and k (weights and biases) stand in the order in which neighbours (2i, 2i + 1) of a head are a rotary pair, as in the
  /// GGUF files of some families. See stored_row_of.
  bool rotary_pairs_interleaved = false;

  std::vector<std::int32_t>
      eos_ids;  // ascending, each once: what config.json and generation_config.json, or the GGUF metadata, call EOS (or end of turn)
  std::int32_t bos_id = -1;  // -1: none
  std::int32_t pad_id = -1;  // -1: none

  std::size_t queries_per_kv_head() const { return num_heads / num_kv_heads; }
  std::uint32_t window_of(std::size_t layer) const { return windows.empty() ? 0 : windows.at(layer); }
  bool is_rotated(std::size_t layer) const { return rotated.empty() || rotated.at(layer); }
  bool has_experts(std::size_t layer) const { return experts.count > 0 && (experts.layers.empty() || experts.layers.at(layer)); }
};

/// What the model's authors suggest for sampling (generation_config.json). Absent: not stated.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

/// The row of a stored q or k projection that holds `row` of the order (i, i + r / 2) in which this program rotates. Rows are counted over
/// all heads.
inline std::size_t stored_row_of(const ModelSpec& spec, std::size_t row) {
  if (!spec.rotary_pairs_interleaved) return row;
  const std::size_t within = row % spec.head_dim;
  const std::size_t half = spec.rope.rotary_dim / 2;
  if (within >= 2 * half) return row;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

}  // namespace lockstep::engine
