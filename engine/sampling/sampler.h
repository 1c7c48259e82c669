#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/candidates.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// What a sampled token depends on besides logits and parameters.
struct SamplingContext {
  std::span<const std::int32_t> prompt;     // history of the repetition penalty: prompt and generated
  std::span<const std::int32_t> generated;  // history of the presence and frequency penalties
  std::uint32_t choice = 0;                 // index of the choice, 0 .. n - 1
  std::uint64_t position = 0;               // of the new token in its sequence, the first prompt token is 0
};

struct Sample {
  std::int32_t token = -1;
  std::string error;                                // not empty: the row is unusable, and why; there is no token then
  float logprob = 0.0f;                             // where params.logprobs >= 0: log-softmax of the unprocessed logits
  std::vector<std::pair<std::int32_t, float>> top;  // the params.logprobs best of it
};

/// From a row of logits to a token: a pure function of its arguments (docs/numerics.md, N6), however often and in whatever order it is
/// called. An object only holds working memory; it is used by one thread at a time.
///
/// The steps, in order: repetition penalty, presence and frequency penalties (fp32); then, over candidates by descending logit and
/// ascending id, each step keeps a first part of the order: top_k (with all that tie with the k-th, but 1 keeps one), top_p (a candidate
/// while the mass before it is below p, of what top_k kept; at least one), min_p (weight at least min_p times the best one's). The choice
/// is the candidate in whose part of the kept mass the uniform draw falls. A candidate's weight is exp((logit - maximum) / temperature) in
/// fp64; the mass of what no later step cuts is summed along the fixed tree of vocabulary_sum.h, the mass before a candidate in the order
/// of candidates. Greedy (temperature 0 or top_k 1) takes the first candidate.
class Sampler {
 public:
  /// @param logits  [vocab_size] fp32
  Sample sample(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context);

  /// The candidates that are left for the draw, with their probabilities, in their order. What sample() draws from; for tests and for those
  /// who look inside. Empty if the row is unusable.
  std::vector<std::pair<std::int32_t, double>> distribution(std::span<const float> logits, const SamplingParams& params,
                                                            const SamplingContext& context);

 private:
  struct Kept {
    std::size_t count = 0;  // candidates, from the first
    double mass = 0.0;      // of all of them
  };
  std::span<const float> apply_penalties(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context);
  std::size_t top_k_count(std::span<const float> logits, std::int32_t top_k, std::size_t num_unmasked);
  double mass_of_first(std::span<const float> logits, std::size_t count, float maximum, double scale);
  Kept keep(std::span<const float> logits, const SamplingParams& params, float maximum, double scale);
  std::int32_t draw(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context);
  void add_logprobs(std::span<const float> logits, std::int32_t count, Sample& sample);

  CandidateOrder order_;
  std::vector<float> processed_;       // [vocab_size], only where there are penalties
  std::vector<std::uint32_t> counts_;  // [vocab_size], all zero between calls
  std::vector<std::pair<std::uint32_t, double>> weights_;
};

/// True if the token needs no more than the top of the row: greedy, without penalties and log-probabilities.
bool needs_only_top(const SamplingParams& params);

/// The error of a row with infinities or NaNs.
std::string non_finite_error();

}  // namespace lockstep::engine
