#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/portable_math.h"
#include "engine/sampling/philox.h"
#include "engine/sampling/vocabulary_sum.h"

namespace lockstep::engine {
namespace {

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

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

}  // namespace

bool needs_only_top(const SamplingParams& params) { return params.greedy() && !has_penalties(params) && params.logprobs < 0; }

std::string non_finite_error() { return "the model gave logits that are not finite (infinity or NaN)"; }

Sample Sampler::sample(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context) {
  Sample sample;
  if (logits.empty() || !all_finite(logits)) {
    sample.error = non_finite_error();
    return sample;
  }
  const std::span<const float> processed = apply_penalties(logits, params, context);
  if (processed.data() != logits.data() && !all_finite(processed)) {
    sample.error = "the penalties of this request take a logit out of the range of fp32";
    return sample;
  }
  order_.reset(processed);
  sample.token = params.greedy() ? static_cast<std::int32_t>(order_[0]) : draw(processed, params, context);
  if (params.logprobs >= 0) add_logprobs(logits, params.logprobs, sample);
  return sample;
}

std::vector<std::pair<std::int32_t, double>> Sampler::distribution(std::span<const float> logits, const SamplingParams& params,
                                                                   const SamplingContext& context) {
  const std::span<const float> processed = apply_penalties(logits, params, context);
  if (!is_usable(logits) || !is_usable(processed)) return {};
  order_.reset(processed);
  if (params.greedy()) return {{static_cast<std::int32_t>(order_[0]), 1.0}};
  const float top = processed[order_[0]];
  const double scale = 1.0 / static_cast<double>(params.temperature);
  const Kept kept = keep(processed, params, top, scale);
  std::vector<std::pair<std::int32_t, double>> result;
  for (std::size_t i = 0; i < kept.count; ++i) {
    const std::uint32_t id = order_[i];
    result.emplace_back(static_cast<std::int32_t>(id), weight_of(processed[id], top, scale) / kept.mass);
  }
  return result;
}

std::span<const float> Sampler::apply_penalties(std::span<const float> logits, const SamplingParams& params,
                                                const SamplingContext& context) {
  if (!has_penalties(params)) return logits;
  processed_.assign(logits.begin(), logits.end());
  counts_.resize(logits.size(), 0);
  const auto in_vocabulary = [&](std::int32_t id) { return id >= 0 && static_cast<std::size_t>(id) < logits.size(); };
  const auto clear_counts = [&](std::span<const std::int32_t> history) {
    for (const std::int32_t id : history) {
      if (in_vocabulary(id)) counts_[static_cast<std::size_t>(id)] = 0;
    }
  };
  if (params.repetition_penalty != 1.0f) {
    for (const auto history : {context.prompt, context.generated}) {
      for (const std::int32_t id : history) {
        if (!in_vocabulary(id) || counts_[static_cast<std::size_t>(id)]++ != 0) continue;
        float& logit = processed_[static_cast<std::size_t>(id)];
        logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      }
    }
    clear_counts(context.prompt);
    clear_counts(context.generated);
  }
  if (params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
    for (const std::int32_t id : context.generated) {
      if (in_vocabulary(id)) ++counts_[static_cast<std::size_t>(id)];
    }
    for (const std::int32_t id : context.generated) {
      if (!in_vocabulary(id) || counts_[static_cast<std::size_t>(id)] == 0) continue;
      const auto occurrences = static_cast<float>(counts_[static_cast<std::size_t>(id)]);
      processed_[static_cast<std::size_t>(id)] -= params.presence_penalty + params.frequency_penalty * occurrences;
      counts_[static_cast<std::size_t>(id)] = 0;
    }
  }
  return processed_;
}

std::size_t Sampler::top_k_count(std::span<const float> logits, std::int32_t top_k, std::size_t num_unmasked) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= num_unmasked) return num_unmasked;
  const float last = logits[order_[static_cast<std::size_t>(top_k) - 1]];
  return static_cast<std::size_t>(std::count_if(logits.begin(), logits.end(), [last](float logit) { return logit >= last; }));
}

double Sampler::mass_of_first(std::span<const float> logits, std::size_t count, float maximum, double scale) {
  weights_.clear();
  for (std::size_t i = 0; i < count; ++i) weights_.emplace_back(order_[i], weight_of(logits[order_[i]], maximum, scale));
  std::sort(weights_.begin(), weights_.end());
  return sum_of_weights(weights_, logits.size());
}

Sampler::Kept Sampler::keep(std::span<const float> logits, const SamplingParams& params, float maximum, double scale) {
  const std::size_t num_unmasked = logits.size() - static_cast<std::size_t>(std::count(logits.begin(), logits.end(), kMasked));
  const std::size_t count = top_k_count(logits, params.top_k, num_unmasked);
  const bool cuts_mass = params.top_p < 1.0f;
  const bool cuts_weight = params.min_p > 0.0f;
  double mass = std::numeric_limits<double>::infinity();
  if (cuts_mass || !cuts_weight) {
    mass = count == num_unmasked ? sum_of_exponentials(logits, maximum, scale) : mass_of_first(logits, count, maximum, scale);
  }
  if (!cuts_mass && !cuts_weight) return {count, mass};
  const double enough = cuts_mass ? static_cast<double>(params.top_p) * mass : mass;
  Kept kept;
  while (kept.count < count) {
    const double weight = weight_of(logits[order_[kept.count]], maximum, scale);
    if (kept.count > 0 && (!(kept.mass < enough) || weight < static_cast<double>(params.min_p))) break;
    kept.mass += weight;
    ++kept.count;
  }
  return kept;
}

std::int32_t Sampler::draw(std::span<const float> logits, const SamplingParams& params, const SamplingContext& context) {
  const float top = logits[order_[0]];
  const double scale = 1.0 / static_cast<double>(params.temperature);
  const Kept kept = keep(logits, params, top, scale);
  const double target = sampling_uniform(params.seed, context.choice, context.position) * kept.mass;
  double before = 0.0;
  std::uint32_t chosen = order_[0];
  for (std::size_t i = 0; i < kept.count && !(target < before); ++i) {
    const double weight = weight_of(logits[order_[i]], top, scale);
    if (weight == 0.0) break;  // the rest weighs nothing either; the draw got here only because the two sums were rounded differently
    chosen = order_[i];
    before += weight;
  }
  return static_cast<std::int32_t>(chosen);
}

void Sampler::add_logprobs(std::span<const float> logits, std::int32_t count, Sample& sample) {
  order_.reset(logits);
  const float top = logits[order_[0]];
  const double log_sum = static_cast<double>(top) + device::portable::log(sum_of_exponentials(logits, top, 1.0));
  const auto logprob = [&](std::uint32_t id) { return static_cast<float>(static_cast<double>(logits[id]) - log_sum); };
  sample.logprob = logprob(static_cast<std::uint32_t>(sample.token));
  const std::size_t num_top = std::min(static_cast<std::size_t>(count), logits.size());
  for (std::size_t i = 0; i < num_top; ++i) sample.top.emplace_back(static_cast<std::int32_t>(order_[i]), logprob(order_[i]));
}

}  // namespace lockstep::engine
