#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampling/params.h"

namespace lockstep::engine {

/// Beam search over one prompt, after transformers' rules: host logic without model or scheduler.
///
/// Each step ranks the continuations of all beams by summed log-probability (fp32 sums; equal ones by beam, then token id) and looks at the
/// best max(2, 1 + end tokens) * beams of them. Those among the first `beams` that end (with an end token, or at max_tokens) are finished,
/// with score = sum / length ^ length_penalty, the end token counted; the `beams` best finished ones are kept. The best `beams` that do not
/// end go on. It is over when `beams` are finished and early_stopping is set, or none that goes on can do better: the best sum / length ^
/// length_penalty, of the length so far (kNever with a positive penalty: of max_tokens), is no more than the worst finished score.
class BeamSearch {
 public:
  /// The likeliest continuations of a beam, best first: token, log-probability.
  using Row = std::vector<std::pair<std::int32_t, float>>;
  struct Beam {
    std::vector<std::int32_t> tokens;  // generated
    float sum = 0.0f;                  // of their log-probabilities
  };
  struct Finished {
    std::vector<std::int32_t> tokens;
    float score = 0.0f;
    bool at_end_token = false;
  };

  BeamSearch(const BeamParams& params, std::uint32_t max_tokens, std::vector<std::int32_t> end_ids);

  /// How many of a row's best advance() wants.
  std::uint32_t num_candidates() const { return num_candidates_; }
  /// One at first, without tokens.
  const std::vector<Beam>& beams() const { return beams_; }
  /// Of each beam of beams(), that which it continues.
  const std::vector<std::size_t>& parents() const { return parents_; }

  /// Takes the rows of all beams. False: it is over.
  bool advance(std::span<const Row> rows);

  /// The best first; of equal scores the one that was finished first.
  const std::vector<Finished>& finished() const { return finished_; }

 private:
  struct Continuation {
    std::size_t parent;
    std::int32_t token;
    float sum;
  };
  float score_of(float sum, std::size_t length) const;
  bool is_over(std::size_t length) const;
  void rank(std::span<const Row> rows);
  void take_finished(std::size_t length);

  BeamParams params_;
  std::uint32_t max_tokens_;
  std::vector<std::int32_t> end_ids_;
  std::uint32_t num_candidates_;
  std::vector<Beam> beams_;
  std::vector<std::size_t> parents_;
  std::vector<Finished> finished_;
  std::vector<Continuation> ranked_;
};

/// Of num_beams beams with so many end tokens.
std::uint32_t beam_candidates(std::uint32_t num_beams, std::size_t num_end_ids);

}  // namespace lockstep::engine
