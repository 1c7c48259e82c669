#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/vocabulary_sum.h"
#include "device/portable_math.h"
#include "engine/sampling/kept_tokens.h"
#include "engine/sampling/philox.h"

namespace lockstep::engine {

using device::LogitChange;

namespace {

bool all_finite(std::span<const float> values) {
  // x - x is 0 for a finite x, NaN otherwise; eight sums that the compiler can keep in lanes, since NaN is never lost.
  float lanes[8] = {};
  std::size_t first = 0;
  for (; first + 8 <= values.size(); first += 8) {
    for (std::size_t i = 0; i < 8; ++i) lanes[i] += values[first + i] - values[first + i];
  }
  for (; first < values.size(); ++first) lanes[0] += values[first] - values[first];
  return std::all_of(std::begin(lanes), std::end(lanes), [](float lane) { return lane == 0.0f; });
}

constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::size_t num_masks(std::span<const LogitChange> changes) {
  return static_cast<std::size_t>(std::count_if(changes.begin(), changes.end(), [](const LogitChange& change) { return change.masks(); }));
}

/// Finite, or masked; and not all of them masked.
bool is_usable(std::span<const float> values) {
  bool has_finite = false;
  for (const float value : values) {
    if (std::isfinite(value)) {
      has_finite = true;
    } else if (value != kMasked) {
      return false;
    }
  }
  return has_finite;
}

/// A row that is wholly there. @pre `order` was reset to it
class WholeRow {
 public:
  WholeRow(std::span<const float> logits, CandidateOrder& order)
      : logits_(logits),
        order_(order),
        num_unmasked_(logits.size() - static_cast<std::size_t>(std::count(logits.begin(), logits.end(), kMasked))) {}
  std::size_t vocab_size() const { return logits_.size(); }
  std::size_t num_unmasked() const { return num_unmasked_; }
  bool get(std::size_t place, RankedLogit& logit) {
    const std::uint32_t id = order_[place];
    logit = {id, logits_[id]};
    return true;
  }
  bool count_from(float last, std::size_t& count) const {
    count = static_cast<std::size_t>(std::count_if(logits_.begin(), logits_.end(), [last](float logit) { return logit >= last; }));
    return true;
  }
  double sum_of_all(float maximum, double scale) const {
    return device::sum_of_exponentials(logits_, maximum, scale, device::supported_isas().back());
  }

 private:
  std::span<const float> logits_;
  CandidateOrder& order_;
  std::size_t num_unmasked_;
};

/// A row of which the first candidates and the sum are known.
class PartOfRow {
 public:
  PartOfRow(const SelectedRow& row, double mass) : row_(row), mass_(mass) {}
  std::size_t vocab_size() const { return row_.vocab_size; }
  std::size_t num_unmasked() const { return row_.vocab_size - row_.num_masked; }
  bool get(std::size_t place, RankedLogit& logit) const {
    if (place >= row_.candidates.size()) return false;
    logit = {row_.candidates[place].id(), row_.candidates[place].logit};
    return true;
  }
  bool count_from(float last, std::size_t& count) const {
    const auto all = row_.candidates.all();
    count =
        static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [last](const auto& candidate) { return candidate.logit >= last; }));
    return count < row_.candidates.size() || count == row_.vocab_size;
  }
  double sum_of_all(float, double) const { return mass_; }

 private:
  const SelectedRow& row_;
  double mass_;
};

float logprob_of(float logit, double log_sum) { return static_cast<float>(static_cast<double>(logit) - log_sum); }

}  // namespace

bool needs_only_top(const SamplingParams& params) { return params.greedy() && !changes_logits(params) && params.logprobs < 0; }

std::string non_finite_error() { return "the model gave logits that are not finite (infinity or NaN)"; }

std::string changes_error(bool all_masked) {
  return all_masked ? "the parameters of this request mask every token of the vocabulary"
                    : "the penalties of this request take a logit out of the range of fp32";
}

Sample Sampler::sample(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context) {
  Sample sample;
  if (logits.empty() || !all_finite(logits)) {
    sample.error = non_finite_error();
    return sample;
  }
  const std::span<const float> processed = apply_changes(logits, params, context);
  if (processed.data() != logits.data()) {
    const std::size_t num_masked = num_masks(row_changes_);
    const auto is_unusable = [&](const LogitChange& change) { return !change.masks() && !std::isfinite(processed[change.id]); };
    if (num_masked == logits.size() || std::any_of(row_changes_.begin(), row_changes_.end(), is_unusable)) {
      sample.error = changes_error(num_masked == logits.size());
      return sample;
    }
  }
  order_.reset(processed);
  std::uint32_t chosen = order_[0];
  if (!params.greedy()) {
    WholeRow row(processed, order_);
    KeptTokens kept(row, params);
    kept.keep();
    kept.draw(sampling_uniform(params.seed, context.choice, context.position), chosen);
  }
  sample.token = static_cast<std::int32_t>(chosen);
  if (params.logprobs >= 0) add_logprobs(logits, params.logprobs, sample);
  return sample;
}

/// A larger mass never moves the draw to an earlier candidate: it keeps as many or more, of which the same uniform number falls on the same
/// one or a later one. So where the least and the most that the mass may be give one candidate, the exact mass gives it too. typical_p
/// chooses among those that are kept, so their number has to be clear.
Sampler::Selected Sampler::select(const SelectedRow& row, const SamplingParams& params, const SamplingContext& context, Sample& sample) {
  if (row.num_masked == row.vocab_size || !row.finite) {
    sample.error = changes_error(row.num_masked == row.vocab_size);
    return Selected::kYes;
  }
  if (row.candidates.empty()) return Selected::kTooFew;
  std::uint32_t chosen = row.candidates[0].id();
  if (!params.greedy()) {
    const double uniform = sampling_uniform(params.seed, context.choice, context.position), error = row.mass * row.mass_error;
    const auto draw = [&](double mass, std::uint32_t& id, std::size_t& num_cut) {
      PartOfRow part(row, mass);
      KeptTokens kept(part, params);
      if (!kept.keep() || !kept.draw(uniform, id)) return false;
      num_cut = kept.num_cut();
      return true;
    };
    std::size_t most_cut = 0, least_cut = 0;
    if (!draw(row.mass + error, chosen, most_cut)) return Selected::kTooFew;
    if (error > 0.0) {
      std::uint32_t of_least = chosen;
      if (!draw(row.mass - error, of_least, least_cut)) return Selected::kTooFew;
      if (of_least != chosen || (params.typical_p < 1.0f && least_cut != most_cut)) return Selected::kUnclear;
    }
  }
  sample.token = static_cast<std::int32_t>(chosen);
  if (params.logprobs < 0) return Selected::kYes;
  const auto all = row.candidates.all();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.id() == chosen; });
  add_logprobs(row, found->unchanged, params.logprobs, sample);
  return Selected::kYes;
}

Sample Sampler::score(std::span<const float> logits, std::int32_t token, std::int32_t count) {
  Sample sample;
  if (logits.empty() || !all_finite(logits)) {
    sample.error = non_finite_error();
    return sample;
  }
  sample.token = token;
  add_logprobs(logits, count, sample);
  return sample;
}

bool Sampler::score(const SelectedRow& row, std::int32_t token, std::int32_t count, Sample& sample) {
  if (!row.finite || row.candidates.empty() || row.candidates[0].id() != static_cast<std::uint32_t>(token)) return false;
  sample.token = token;
  add_logprobs(row, row.candidates[0].unchanged, count, sample);
  return true;
}

std::vector<std::pair<std::int32_t, double>> Sampler::distribution(std::span<const float> logits, const SamplingParams& params,
                                                                   const SamplingContext& context) {
  const std::span<const float> processed = apply_changes(logits, params, context);
  if (!is_usable(logits) || !is_usable(processed)) return {};
  order_.reset(processed);
  if (params.greedy()) return {{static_cast<std::int32_t>(order_[0]), 1.0}};
  WholeRow row(processed, order_);
  KeptTokens kept(row, params);
  kept.keep();
  std::vector<std::pair<std::int32_t, double>> result;
  for (std::size_t i = 0; i < kept.count(); ++i) {
    RankedLogit logit;
    kept.get(i, logit);
    result.emplace_back(static_cast<std::int32_t>(logit.id), kept.weight_of(logit) / kept.mass());
  }
  return result;
}

std::span<const float> Sampler::apply_changes(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context) {
  if (!changes_logits(params)) return logits;
  row_changes_.clear();
  changes_.collect(params, context, logits.size(), row_changes_);
  processed_.assign(logits.begin(), logits.end());
  for (const LogitChange& change : row_changes_) processed_[change.id] = device::changed(processed_[change.id], change);
  return processed_;
}

void Sampler::add_logprobs(const SelectedRow& row, float chosen, std::int32_t count, Sample& sample) {
  const double log_sum = static_cast<double>(row.maximum) + device::portable::log(row.log_mass);
  sample.logprob = logprob_of(chosen, log_sum);
  const FirstCandidates& best = row.best_as_it_is();
  for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(count), best.size()); ++i)
    sample.top.emplace_back(static_cast<std::int32_t>(best[i].id()), logprob_of(best[i].unchanged, log_sum));
}

void Sampler::add_logprobs(std::span<const float> logits, std::int32_t count, Sample& sample) {
  order_.reset(logits);
  const float top = logits[order_[0]];
  const double log_sum =
      static_cast<double>(top) + device::portable::log(device::sum_of_exponentials(logits, top, 1.0, device::supported_isas().back()));
  const auto logprob = [&](std::uint32_t id) { return logprob_of(logits[id], log_sum); };
  sample.logprob = logprob(static_cast<std::uint32_t>(sample.token));
  const std::size_t num_top = std::min(static_cast<std::size_t>(count), logits.size());
  for (std::size_t i = 0; i < num_top; ++i) sample.top.emplace_back(static_cast<std::int32_t>(order_[i]), logprob(order_[i]));
}

}  // namespace lockstep::engine
