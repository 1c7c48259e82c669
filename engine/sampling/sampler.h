#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/candidates.h"
#include "engine/sampling/context.h"
#include "engine/sampling/logit_changes.h"
#include "engine/sampling/params.h"
#include "engine/sampling/selected_row.h"

namespace lockstep::engine {

struct Sample {
  std::int32_t token = -1;
  std::string error;                                // not empty: the row is unusable, and why; there is no token then
  float logprob = 0.0f;                             // where params.logprobs >= 0: log-softmax of the unprocessed logits
  std::vector<std::pair<std::int32_t, float>> top;  // the params.logprobs best of it
};

/// From a row of logits to a token: a pure function of its arguments (docs/numerics.md, N6), however often and in whatever order it is
/// called. An object only holds working memory; it is used by one thread at a time.
///
/// The steps, in order: logit_bias, repetition penalty, presence and frequency penalties, masks of no_repeat_ngram_size and min_tokens
/// (fp32); then, over candidates by descending logit and ascending id, each step keeps a first part of the order: top_k (with all that tie
/// with the k-th, but 1 keeps one), top_p (a candidate while the mass before it is below p, of what top_k kept; at least one), min_p
/// (weight at least min_p times the best one's); then typical_p keeps those whose information is nearest to the entropy. The choice is the
/// candidate in whose part of the kept mass the uniform draw falls. A candidate's weight is exp((logit - maximum) / temperature) in fp64;
/// the mass of what no later step cuts is summed along the fixed tree of vocabulary_sum.h, the mass before a candidate in the order of
/// candidates. Greedy (temperature 0 or top_k 1) takes the first candidate.
class Sampler {
 public:
  /// @param logits  [vocab_size] fp32
  Sample sample(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context);

  /// Whether what is known of a row was enough; if not, sample() with the row itself gives the answer.
  enum class Selected : std::uint8_t {
    kYes,
    kTooFew,   // candidates
    kUnclear,  // the draw depends on how the mass is rounded: it is known nearly, not exactly
  };
  /// The same token and log-probabilities from what is known of the row, as selection_row() asked for it. `sample` is left alone where that
  /// is not enough.
  Selected select(const SelectedRow& row, const SamplingParams& params, const SamplingContext& context, Sample& sample);

  /// The log-probabilities of `token`, and of the `count` best, whatever would be sampled.
  Sample score(std::span<const float> logits, std::int32_t token, std::int32_t count);
  /// The same from what is known of the row, as scored_row() asked for it. @return false: that is not enough
  bool score(const SelectedRow& row, std::int32_t token, std::int32_t count, Sample& sample);

  /// The candidates that are left for the draw, with their probabilities, in their order. What sample() draws from; for tests and for those
  /// who look inside. Empty if the row is unusable.
  std::vector<std::pair<std::int32_t, double>> distribution(std::span<const float> logits, const SamplingParams& params,
                                                            const SamplingContext& context);

 private:
  std::span<const float> apply_changes(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context);
  void add_logprobs(std::span<const float> logits, std::int32_t count, Sample& sample);
  static void add_logprobs(const SelectedRow& row, float chosen, std::int32_t count, Sample& sample);

  CandidateOrder order_;
  LogitChanges changes_;
  std::vector<device::LogitChange> row_changes_;
  std::vector<float> processed_;  // [vocab_size], only where there are changes
};

/// True if the token needs no more than the top of the row: greedy, nothing that changes a logit, no log-probabilities.
bool needs_only_top(const SamplingParams& params);

/// The error of a row with infinities or NaNs.
std::string non_finite_error();
/// The error of a row whose changed logits are not usable.
std::string changes_error(bool all_masked);

}  // namespace lockstep::engine
