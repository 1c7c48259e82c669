#include "engine/model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "device/portable_math.h"
#include "engine/model/limits.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

namespace portable = device::portable;

constexpr double kLargest = 1e9;
constexpr double kPi = 3.14159265358979323846;

struct NamedScaling {
  std::string_view name;
  RopeScaling scaling;
};
constexpr std::array<NamedScaling, 8> kScalings{{{"default", RopeScaling::kNone},
                                                 {"none", RopeScaling::kNone},
                                                 {"linear", RopeScaling::kLinear},
                                                 {"dynamic", RopeScaling::kDynamic},
                                                 {"yarn", RopeScaling::kYarn},
                                                 {"llama3", RopeScaling::kLlama3},
                                                 {"longrope", RopeScaling::kLongrope},
                                                 {"su", RopeScaling::kLongrope}}};

RopeScaling scaling_of(const JsonFields& fields) {
  const auto kind = fields.text("rope_type");
  const auto old_kind = fields.text("type");
  if (kind && old_kind && *kind != *old_kind) fields.fail("type", quote(*old_kind) + " contradicts rope_type, " + quote(*kind));
  const std::string stated = kind.value_or(old_kind.value_or("default"));
  for (const NamedScaling& known : kScalings) {
    if (known.name == stated) return known.scaling;
  }
  fields.fail(kind ? "rope_type" : "type",
              quote(stated) + " is not supported; supported: 'default', 'linear', 'dynamic', 'yarn', 'llama3', 'longrope'");
}

double required(const JsonFields& fields, const char* key, double min, double max) {
  const auto value = fields.number(key, min, max);
  if (!value) fields.fail(key, "is missing, and this rope_type needs it");
  return *value;
}

std::vector<double> factors(const JsonFields& fields, const char* key, std::size_t count) {
  const nlohmann::json* list = fields.find(key);
  if (list == nullptr || !list->is_array() || list->size() != count)
    fields.fail(key, "a list of " + std::to_string(count) + " numbers is needed, one for each rotary pair");
  std::vector<double> values;
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_number() || !(entry.get<double>() > 0.0) || entry.get<double>() > kLargest)
      fields.fail(key, "has an entry that is no positive number");
    values.push_back(entry.get<double>());
  }
  return values;
}

/// `outer` is the configuration, where some of these numbers may stand too.
void read_scaling(const JsonFields& fields, const JsonFields& outer, std::size_t max_positions, RopeSpec& rope) {
  rope.scaling = scaling_of(fields);
  if (rope.scaling == RopeScaling::kNone) {
    if (fields.number("factor", 0.0, kLargest).value_or(1.0) != 1.0)
      fields.fail("factor", "is set, but rope_type names no kind of scaling that uses it");
    return;
  }
  const auto original = [&](std::uint64_t absent) {
    const std::uint64_t beside = outer.integer_or("original_max_position_embeddings", 1, SpecLimits::kPositions, absent);
    return fields.integer_or("original_max_position_embeddings", 1, SpecLimits::kPositions, beside);
  };
  rope.attention_factor = fields.number("attention_factor", 1e-6, kLargest);
  if (rope.scaling == RopeScaling::kLongrope) {
    rope.original_positions = original(max_positions);
    rope.factor =
        fields.number("factor", 1.0, kLargest).value_or(static_cast<double>(max_positions) / static_cast<double>(rope.original_positions));
    rope.short_factors = factors(fields, "short_factor", rope.rotary_dim / 2);
    rope.long_factors = factors(fields, "long_factor", rope.rotary_dim / 2);
    return;
  }
  rope.factor = required(fields, "factor", 1.0, kLargest);
  // The dynamic kind counts from the length that the model names, whatever it was trained with.
  rope.original_positions = rope.scaling == RopeScaling::kDynamic ? max_positions : original(max_positions);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_frequency_factor = required(fields, "low_freq_factor", 1e-6, kLargest);
    rope.high_frequency_factor = required(fields, "high_freq_factor", 1e-6, kLargest);
    if (rope.high_frequency_factor <= rope.low_frequency_factor) fields.fail("high_freq_factor", "must be larger than low_freq_factor");
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rope.beta_fast = fields.number("beta_fast", 1e-6, kLargest).value_or(32.0);
    rope.beta_slow = fields.number("beta_slow", 1e-6, kLargest).value_or(1.0);
    rope.truncate = fields.flag_or("truncate", true);
    rope.mscale = fields.number("mscale", 0.0, kLargest);
    rope.mscale_all_dim = fields.number("mscale_all_dim", 0.0, kLargest);
  }
}

std::vector<double> plain_frequencies(const RopeSpec& rope) {
  std::vector<double> frequencies(rope.rotary_dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    frequencies[i] = 1.0f / static_cast<float>(portable::pow(rope.theta, exponent));
  }
  return frequencies;
}

/// Pairs that turn more than beta_fast times over the original length are kept, those that turn less than beta_slow times divided by the
/// factor; between the two a ramp.
void scale_yarn(const RopeSpec& rope, std::vector<double>& frequencies) {
  const double dim = static_cast<double>(rope.rotary_dim);
  const auto pair_of_turns = [&](double turns) {
    return dim * portable::log(static_cast<double>(rope.original_positions) / (turns * 2.0 * kPi)) / (2.0 * portable::log(rope.theta));
  };
  double low = pair_of_turns(rope.beta_fast), high = pair_of_turns(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  if (!std::isfinite(low) || !std::isfinite(high)) throw std::runtime_error("YaRN needs a rope_theta above 1");
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double scaled = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * scaled + frequencies[i] * (1.0 - scaled);
  }
}

double yarn_factor(const RopeSpec& rope) {
  const auto of = [&](double mscale) { return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * portable::log(rope.factor) + 1.0; };
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale && rope.mscale_all_dim && *rope.mscale != 0.0 && *rope.mscale_all_dim != 0.0)
    return of(*rope.mscale) / of(*rope.mscale_all_dim);
  return of(1.0);
}

double longrope_factor(const RopeSpec& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + portable::log(rope.factor) / portable::log(static_cast<double>(rope.original_positions)));
}

std::vector<float> rounded(const std::vector<double>& values) { return {values.begin(), values.end()}; }

std::vector<float> divided(const std::vector<double>& frequencies, const std::vector<float>& by) {
  std::vector<float> result;
  for (std::size_t i = 0; i < frequencies.size(); ++i) result.push_back(static_cast<float>(frequencies[i] / static_cast<double>(by[i])));
  return result;
}

}  // namespace

std::size_t rotary_dim_of(const JsonFields& fields, std::size_t head_dim, double part) {
  const auto dim = static_cast<std::size_t>(static_cast<double>(head_dim) * part);
  if (dim < 2 || dim % 2 != 0) {
    fields.fail("partial_rotary_factor", "rotates " + std::to_string(dim) + " of " + std::to_string(head_dim) +
                                             " dims of a head; an even number from 2 on is needed");
  }
  return dim;
}

RopeSpec rope_from_config(const JsonFields& fields, std::size_t head_dim, std::size_t max_positions, const char* kind) {
  RopeSpec rope;
  const auto scaling = fields.object("rope_scaling");
  auto parameters = fields.object("rope_parameters");
  if (parameters && kind != nullptr && parameters->find(kind) != nullptr) {
    const auto of_kind = parameters->object(kind);
    parameters.emplace(*of_kind);
  } else if (parameters && parameters->find("full_attention") != nullptr) {
    parameters->fail("full_attention", "this family has the same rotary embedding in all layers");
  }
  std::optional<double> theta = fields.number("rope_theta", 1.0, SpecLimits::kRopeTheta);
  std::optional<double> part = fields.number("partial_rotary_factor", 0.0, 1.0);
  if (parameters) {
    const auto inner = parameters->number("rope_theta", 1.0, SpecLimits::kRopeTheta);
    if (inner && theta && *inner != *theta) parameters->fail("rope_theta", "contradicts the rope_theta beside rope_parameters");
    if (inner) theta = inner;
    const auto inner_part = parameters->number("partial_rotary_factor", 0.0, 1.0);
    if (inner_part && part && *inner_part != *part)
      parameters->fail("partial_rotary_factor", "contradicts the partial_rotary_factor beside rope_parameters");
    if (inner_part) part = inner_part;
  }
  rope.theta = theta.value_or(10000.0);
  rope.rotary_dim = rotary_dim_of(fields, head_dim, part.value_or(1.0));
  if (scaling) read_scaling(*scaling, fields, max_positions, rope);
  if (parameters) {
    const RopeScaling before = rope.scaling;
    read_scaling(*parameters, fields, max_positions, rope);
    if (scaling && rope.scaling != before) parameters->fail("rope_type", "contradicts rope_scaling");
  }
  return rope;
}

/// Wave lengths up to original / high are kept, those from original / low on divided by the factor, and between the two mixed.
std::vector<float> llama3_divisors(const RopeSpec& rope) {
  const double original = static_cast<double>(rope.original_positions);
  std::vector<float> divisors;
  for (const double frequency : plain_frequencies(rope)) {
    const double wave_length = 2.0 * kPi / frequency;
    double divisor = 1.0;
    if (wave_length > original / rope.low_frequency_factor) {
      divisor = rope.factor;
    } else if (wave_length >= original / rope.high_frequency_factor) {
      const double smooth = (original / wave_length - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
      divisor = 1.0 / ((1.0 - smooth) / rope.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

parallel::Rotary rotary_of(const RopeSpec& rope) {
  parallel::Rotary rotary{.dim = rope.rotary_dim};
  std::vector<double> frequencies = plain_frequencies(rope);
  switch (rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeScaling::kDynamic:
      rotary.long_from = rope.original_positions;
      rotary.growing_base = rope.theta;
      rotary.growth = rope.factor;
      break;
    case RopeScaling::kLlama3: rotary.frequencies = divided(frequencies, llama3_divisors(rope)); return rotary;
    case RopeScaling::kYarn:
      scale_yarn(rope, frequencies);
      rotary.factor = static_cast<float>(yarn_factor(rope));
      break;
    case RopeScaling::kLongrope:
      rotary.factor = static_cast<float>(longrope_factor(rope));
      rotary.long_from = rope.original_positions;
      rotary.long_frequencies = divided(frequencies, rounded(rope.long_factors));
      rotary.frequencies = divided(frequencies, rounded(rope.short_factors));
      return rotary;
  }
  if (!rope.divisors.empty()) {
    rotary.frequencies = divided(frequencies, rope.divisors);
  } else {
    rotary.frequencies = rounded(frequencies);
  }
  return rotary;
}

}  // namespace lockstep::engine
