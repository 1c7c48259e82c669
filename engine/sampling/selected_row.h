#pragma once

#include <cstdint>
#include <span>

#include "device/selection.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// What rank 0 knows of a row of logits that stayed where it is: the first candidates and sums of the rest (docs/numerics.md, N6).
struct SelectedRow {
  struct Candidate {
    float logit = 0.0f;      // changed
    float unchanged = 0.0f;  // as the model gave it
    std::uint32_t id = 0;
  };
  std::size_t vocab_size = 0;
  std::size_t num_masked = 0;             // ids
  bool finite = true;                     // all that are not masked, after the changes
  std::span<const Candidate> candidates;  // the first of the changed row, in their order; as many as are known
  double mass = 0.0;                      // sum of the exponentials of the changed row, where it was asked for
  double mass_error = 0.0;                // the part of itself that it may be off by; 0: it is exact
  std::span<const Candidate> best;        // the first of the row as it is
  float maximum = 0.0f;                   // of the row as it is
  double log_mass = 0.0;                  // sum of its exponentials at scale 1, where it was asked for
};

/// How many are asked for, as long as they are enough.
inline constexpr std::uint32_t kFirstCandidates = 64;

/// True if candidates and sums can be enough for these parameters; else the row itself is needed.
bool can_select(const SamplingParams& params);

/// What to ask of a row. `row` and `num_changes` are the caller's to set. @pre can_select(params)
/// @param candidates  how many, if nothing else is known
device::SelectionRow selection_row(const SamplingParams& params, std::span<const device::LogitChange> changes, std::uint32_t candidates);

/// What to ask of a row for the log-probability of one token, and of the `num_best` best: the token, lifted above all others, is the first
/// candidate, whichever rank has it, and comes with its logit as it is. `row` is the caller's to set, and `lifted(token)` its only change.
device::SelectionRow scored_row(std::uint32_t num_best);
device::LogitChange lifted(std::uint32_t token);

}  // namespace lockstep::engine
