#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::engine {

enum class EarlyStopping : std::uint8_t { kNo, kYes, kNever };

/// Beam search in place of sampling (engine/sampling/beam_search.h).
struct BeamParams {
  std::uint32_t num_beams = 1;
  float length_penalty = 1.0f;
  EarlyStopping early_stopping = EarlyStopping::kNo;
};

/// What a request asks of the sampler. Defaults are the neutral values; request parsing applies generation_config's.
struct SamplingParams {
  float temperature = 1.0f;                // 0: greedy
  std::int32_t top_k = 0;                  // 0 or -1: off; keeps ties, except 1, which is greedy
  float top_p = 1.0f;                      // 1: off; 0 keeps one token
  float min_p = 0.0f;                      // 0: off
  float repetition_penalty = 1.0f;         // over prompt and generated tokens: positive logits are divided by it, negative ones multiplied
  float presence_penalty = 0.0f;           // over generated tokens: subtracted once from each that occurs
  float frequency_penalty = 0.0f;          // over generated tokens: subtracted once an occurrence
  float typical_p = 1.0f;                  // 1: off
  std::uint32_t no_repeat_ngram_size = 0;  // 0: off; over prompt and generated tokens
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // added to the logits of these ids, each once
  std::uint32_t min_tokens = 0;                            // generated tokens before which nothing ends the answer
  std::uint64_t seed = 0;                                  // always given here: an absent one was drawn by whoever built the request
  std::uint32_t n = 1;                                     // choices; choice i draws from (seed, i, position)
  std::uint32_t max_tokens = 16;                           // generated tokens at most
  bool ignore_eos = false;
  std::vector<std::string> stop;             // texts that end the generation; not part of the answer
  std::vector<std::int32_t> stop_token_ids;  // end it as EOS does
  std::int32_t logprobs = -1;                // -1: none; n: the sampled token's and the n best, from the unprocessed logits
  std::optional<BeamParams> beams{};  // if present, only n (at most num_beams), max_tokens, ignore_eos and stop_token_ids matter beside it
  bool greedy() const { return temperature == 0.0f || top_k == 1; }
};

}  // namespace lockstep::engine
