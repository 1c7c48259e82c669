#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "device/cpu/vocabulary_sum.h"
#include "device/portable_math.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// A place in the order of candidates: logit descending, then id ascending.
struct RankedLogit {
  std::uint32_t id = 0;
  float logit = 0.0f;
};

/// Which candidates of a row are left for the draw, and the draw: top_k, top_p, min_p and typical_p as docs/numerics.md, N6, has them, once
/// for rows that are wholly there and for those of which only the first candidates are known.
///
/// A Row has
///   std::size_t num_unmasked() const;
///   bool get(std::size_t place, RankedLogit& logit);          // false: not known
///   bool count_from(float last, std::size_t& count);          // logits of at least `last`; false: not known
///   double sum_of_all(float maximum, double scale);           // of exponentials, where top_k is off
/// Where a Row does not know what is asked for, keep() and draw() give false, and the whole row is needed.
template <class Row>
class KeptTokens {
 public:
  KeptTokens(Row& row, const SamplingParams& params) : row_(row), params_(params), scale_(1.0 / static_cast<double>(params.temperature)) {}

  /// @pre something is not masked
  bool keep() {
    RankedLogit best;
    if (!row_.get(0, best)) return false;
    maximum_ = best.logit;
    std::size_t count = 0;
    if (!count_top_k(count)) return false;
    const bool cuts_mass = params_.top_p < 1.0f;
    const bool cuts_weight = params_.min_p > 0.0f;
    double mass = std::numeric_limits<double>::infinity();
    if ((cuts_mass || !cuts_weight) && !mass_of(count, mass)) return false;
    count_ = count;
    mass_ = mass;
    if ((cuts_mass || cuts_weight) && !cut(count, cuts_mass ? static_cast<double>(params_.top_p) * mass : mass)) return false;
    num_cut_ = count_;
    return params_.typical_p >= 1.0f || keep_typical();
  }

  /// The candidate in whose part of the kept mass `uniform` falls.
  bool draw(double uniform, std::uint32_t& id) {
    const double target = uniform * mass_;
    double before = 0.0;
    for (std::size_t i = 0; i < count_ && (i == 0 || !(target < before)); ++i) {
      RankedLogit logit;
      if (!get(i, logit)) return false;
      const double weight = weight_of(logit);
      // The rest weighs nothing either; the draw got here only because the two sums were rounded differently.
      if (weight == 0.0 && i > 0) break;
      id = logit.id;
      before += weight;
    }
    return true;
  }

  std::size_t count() const { return count_; }
  /// What top_k, top_p and min_p kept.
  std::size_t num_cut() const { return num_cut_; }
  double mass() const { return mass_; }
  /// The i-th that is kept.
  bool get(std::size_t i, RankedLogit& logit) { return row_.get(is_prefix_ ? i : places_[i], logit); }
  double weight_of(const RankedLogit& logit) const { return device::weight_of(logit.logit, maximum_, scale_); }

 private:
  bool count_top_k(std::size_t& count) {
    count = row_.num_unmasked();
    if (params_.top_k <= 0 || static_cast<std::size_t>(params_.top_k) >= count) return true;
    RankedLogit last;
    return row_.get(static_cast<std::size_t>(params_.top_k) - 1, last) && row_.count_from(last.logit, count);
  }

  bool mass_of(std::size_t count, double& mass) {
    if (params_.top_k <= 0) {
      mass = row_.sum_of_all(maximum_, scale_);
      return true;
    }
    std::vector<std::pair<std::uint32_t, double>> weights;
    for (std::size_t i = 0; i < count; ++i) {
      RankedLogit logit;
      if (!row_.get(i, logit)) return false;
      weights.emplace_back(logit.id, weight_of(logit));
    }
    std::sort(weights.begin(), weights.end());
    mass = device::sum_of_weights(weights, row_.vocab_size());
    return true;
  }

  /// top_p and min_p: a first part of the `count` candidates.
  bool cut(std::size_t count, double enough) {
    count_ = 0;
    mass_ = 0.0;
    for (; count_ < count; ++count_) {
      if (count_ > 0 && !(mass_ < enough)) break;
      RankedLogit logit;
      if (!row_.get(count_, logit)) return false;
      const double weight = weight_of(logit);
      if (count_ > 0 && weight < static_cast<double>(params_.min_p)) break;
      mass_ += weight;
    }
    return true;
  }

  /// Those whose information is nearest to the entropy of what is kept, until they have typical_p of the mass; ties with the last one stay.
  bool keep_typical() {
    const double log_mass = device::portable::log(mass_);
    std::vector<std::pair<double, std::size_t>> distances;  // first the information
    double entropy = 0.0;
    for (std::size_t i = 0; i < count_; ++i) {
      RankedLogit logit;
      if (!row_.get(i, logit)) return false;
      const double information = log_mass - (static_cast<double>(logit.logit) - static_cast<double>(maximum_)) * scale_;
      entropy = std::fma(weight_of(logit) / mass_, information, entropy);
      distances.emplace_back(information, i);
    }
    for (auto& [distance, place] : distances) distance = std::fabs(distance - entropy);
    std::sort(distances.begin(), distances.end());
    double mass = 0.0;
    double last = distances.front().first;
    for (const auto& [distance, place] : distances) {
      if (place != distances.front().second && !(mass < static_cast<double>(params_.typical_p) * mass_) && distance > last) break;
      RankedLogit logit;
      if (!row_.get(place, logit)) return false;
      mass += weight_of(logit);
      last = distance;
      places_.push_back(place);
    }
    std::sort(places_.begin(), places_.end());
    is_prefix_ = false;
    count_ = places_.size();
    mass_ = 0.0;
    for (std::size_t i = 0; i < count_; ++i) {
      RankedLogit logit;
      if (!get(i, logit)) return false;
      mass_ += weight_of(logit);
    }
    return true;
  }

  Row& row_;
  const SamplingParams& params_;
  double scale_;
  float maximum_ = 0.0f;
  std::size_t count_ = 0;
  std::size_t num_cut_ = 0;
  double mass_ = 0.0;
  bool is_prefix_ = true;
  std::vector<std::size_t> places_;  // where it is not: of those that are kept, ascending
};

}  // namespace lockstep::engine
