#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::engine {

/// How the tensors of a model are named.
enum class NamingScheme : std::uint8_t {
  kHuggingFace,  // "model.layers.0.self_attn.q_proj.weight"
  kGguf,         // "blk.0.attn_q.weight"
};

/// Rotary position embedding. Scaling kinds other than the plain one are refused where the configuration is read.
struct RopeSpec {
  double theta = 10000.0;      // pair i of r/2 turns by position * theta^(-2i / r)
  std::size_t rotary_dim = 0;  // r: the first dims of a head that are rotated, in pairs (i, i + r / 2); even, at most head_dim
};

/// What a model is, whichever kind of file said so. Values are in range: positive sizes with sane upper bounds, num_heads a multiple of
/// num_kv_heads.
struct ModelSpec {
  std::string architecture;  // the family: "llama"
  std::string source;        // the file that the values are from, for messages

  std::size_t hidden_size = 0;
  std::size_t num_layers = 0;
  std::size_t num_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;  // need not be hidden_size / num_heads
  std::size_t intermediate_size = 0;
  std::size_t vocab_size = 0;
  std::size_t max_position_embeddings = 0;
  float rms_norm_eps = 0.0f;
  RopeSpec rope;

  bool attention_bias = false;         // of the q, k and v projections
  bool attention_output_bias = false;  // of the o projection
  bool mlp_bias = false;               // of gate, up and down
  bool tie_word_embeddings = false;    // the embedding is the head too; a head tensor that is there all the same is not read

  NamingScheme naming = NamingScheme::kHuggingFace;
  /// The rows of q and k (weights and biases) stand in the order in which neighbours (2i, 2i + 1) of a head are a rotary pair, as in the
  /// GGUF files of the Llama family. See stored_row_of.
  bool rotary_pairs_interleaved = false;

  std::vector<std::int32_t>
      eos_ids;  // ascending, each once: what config.json and generation_config.json, or the GGUF metadata, call EOS (or end of turn)
  std::int32_t bos_id = -1;  // -1: none
  std::int32_t pad_id = -1;  // -1: none

  std::size_t queries_per_kv_head() const { return num_heads / num_kv_heads; }
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
