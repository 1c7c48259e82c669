#pragma once

#include <cstdint>
#include <span>

#include "device/selection.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// The first candidates of a row, as many as are known. They are brought into their order where they stand, and no further than they are
/// read: most draws need a few of hundreds.
class FirstCandidates {
 public:
  struct Candidate {
    Candidate(float changed, float as_it_is, std::uint32_t of_id)
        : key(device::candidate_key(changed, of_id)), logit(changed), unchanged(as_it_is) {}
    std::uint32_t id() const { return static_cast<std::uint32_t>(key); }

    std::uint64_t key;  // of the changed logit
    float logit;        // changed
    float unchanged;    // as the model gave it
  };
  FirstCandidates() = default;
  /// @param candidates  in any order; nobody else changes that memory while this is read
  explicit FirstCandidates(std::span<Candidate> candidates) : candidates_(candidates) {}

  std::size_t size() const { return candidates_.size(); }
  bool empty() const { return candidates_.empty(); }
  /// @pre place < size()
  const Candidate& operator[](std::size_t place) const {
    if (place >= num_ordered_) order_up_to(place + 1);
    return candidates_[place];
  }
  /// All of them, in no order that would mean anything.
  std::span<const Candidate> all() const { return candidates_; }

 private:
  void order_up_to(std::size_t count) const;

  std::span<Candidate> candidates_;
  mutable std::size_t num_ordered_ = 0;
};

/// What rank 0 knows of a row of logits that stayed where it is: the first candidates and sums of the rest (docs/numerics.md, N6).
struct SelectedRow {
  std::size_t vocab_size = 0;
  std::size_t num_masked = 0;  // ids
  bool finite = true;          // all that are not masked, after the changes
  FirstCandidates candidates;  // of the changed row
  double mass = 0.0;           // sum of the exponentials of the changed row, where it was asked for
  double mass_error = 0.0;     // the part of itself that it may be off by; 0: it is exact
  FirstCandidates best;        // of the row as it is, where it has changes; else those are its candidates
  float maximum = 0.0f;        // of the row as it is
  double log_mass = 0.0;       // sum of its exponentials at scale 1, where it was asked for

  const FirstCandidates& best_as_it_is() const { return best.empty() ? candidates : best; }
};

/// Such rows, one at a time, so that what is known of one stands where the next one's will.
class SelectedRows {
 public:
  virtual ~SelectedRows() = default;
  virtual std::size_t size() const = 0;
  /// Valid until the next call.
  virtual const SelectedRow& row(std::size_t index) = 0;
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
