#include "engine/quantise/super_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "device/dtype.h"

namespace lockstep::engine {
namespace {

void put_half(std::uint16_t half, std::byte* to) { std::memcpy(to, &half, sizeof half); }

constexpr float kSmallest = 1e-30f;  // far below what an F16 scale can express

/// The nearest of least..most, where 1 / `inverse` is one quant (0 where there is no scale).
float quant(float value, float inverse, float least, float most) {
  return std::clamp(nearest_integer(std::clamp(value * inverse, -1024.0f, 1024.0f)), least, most);
}

// Q4_K: w = scale * q - minimum in each part of 32, q in 0..15.

struct ScaleAndMinimum {
  float scale = 0.0f;    // >= 0
  float minimum = 0.0f;  // >= 0
};

/// Least squares over a range of quants: for each candidate of a scale the nearest quants, and for those the best scale and minimum.
ScaleAndMinimum fit_part(const float* values) {
  constexpr int kCandidates = 16;
  const auto [least, most] = std::minmax_element(values, values + 32);
  const float low = std::min(*least, 0.0f);
  const float range = std::max(*most, 0.0f) - low;
  ScaleAndMinimum best{0.0f, -low};
  double best_error = 0.0;
  for (int i = 0; i < 32; ++i) best_error += static_cast<double>(values[i] - low) * (values[i] - low);
  if (range < kSmallest) return best;
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const float inverse = (14.4f + 0.1f * static_cast<float>(candidate)) / range;
    float sum_q = 0.0f, sum_qq = 0.0f, sum_x = 0.0f, sum_xq = 0.0f;
    std::array<float, 32> quants;
    for (int i = 0; i < 32; ++i) {
      const float q = quant(values[i] - low, inverse, 0.0f, 15.0f);
      quants[static_cast<std::size_t>(i)] = q;
      sum_q += q;
      sum_qq += q * q;
      sum_x += values[i];
      sum_xq += values[i] * q;
    }
    const float determinant = 32.0f * sum_qq - sum_q * sum_q;
    float scale = 0.0f, offset = 0.0f;
    if (determinant > 0.0f) {
      scale = (32.0f * sum_xq - sum_q * sum_x) / determinant;
      offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    }
    if (determinant <= 0.0f || offset > 0.0f) {  // one quant for all values, or a minimum above zero, which there is not
      offset = 0.0f;
      scale = sum_xq / sum_qq;
    }
    if (!(scale > 0.0f)) continue;
    double error = 0.0;
    for (int i = 0; i < 32; ++i) {
      const double difference = scale * quants[static_cast<std::size_t>(i)] + offset - values[i];
      error += difference * difference;
    }
    if (error < best_error) {
      best_error = error;
      best = {scale, -offset};
    }
  }
  return best;
}

struct PartQuants {
  double error = 0.0;
  std::array<std::uint8_t, 32> quants{};
};

/// The nearest quants for a scale and a minimum as they will be decoded.
PartQuants nearest_quants(const float* values, float scale, float minimum) {
  PartQuants result;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (std::size_t i = 0; i < 32; ++i) {
    const float q = quant(values[i] + minimum, inverse, 0.0f, 15.0f);
    const double difference = static_cast<double>(scale * q - minimum) - values[i];
    result.error += difference * difference;
    result.quants[i] = static_cast<std::uint8_t>(q);
  }
  return result;
}

struct Q4Part {
  std::uint8_t scale = 0;    // 6 bits
  std::uint8_t minimum = 0;  // 6 bits
  PartQuants quants;
};

/// The 6-bit scale and minimum nearest to the wanted ones, or one of their neighbours, whichever has the least error.
Q4Part choose_part(const float* values, const ScaleAndMinimum& wanted, float unit_scale, float unit_minimum) {
  const auto around = [](float value, float unit) {
    return unit == 0.0f ? 0 : static_cast<int>(nearest_integer(std::min(value / unit, 64.0f)));
  };
  const int scale_at = around(wanted.scale, unit_scale);
  const int minimum_at = around(wanted.minimum, unit_minimum);
  Q4Part best;
  bool first = true;
  for (const int scale_step : {0, -1, 1}) {
    for (const int minimum_step : {0, -1, 1}) {
      const int scale = std::clamp(scale_at + scale_step, 0, 63);
      const int minimum = std::clamp(minimum_at + minimum_step, 0, 63);
      PartQuants quants = nearest_quants(values, unit_scale * static_cast<float>(scale), unit_minimum * static_cast<float>(minimum));
      if (!first && !(quants.error < best.quants.error)) continue;
      best = {static_cast<std::uint8_t>(scale), static_cast<std::uint8_t>(minimum), quants};
      first = false;
    }
  }
  return best;
}

/// Eight pairs of 6 bits in 12 bytes, as Q4_K and Q5_K have them.
void put_pairs(const std::array<Q4Part, 8>& parts, std::byte* to) {
  for (std::size_t i = 0; i < 4; ++i) {
    const Q4Part& low = parts[i];
    const Q4Part& high = parts[i + 4];
    to[i] = static_cast<std::byte>(low.scale | (high.scale >> 4) << 6);
    to[i + 4] = static_cast<std::byte>(low.minimum | (high.minimum >> 4) << 6);
    to[i + 8] = static_cast<std::byte>((high.scale & 15) | (high.minimum & 15) << 4);
  }
}

// Q6_K: w = scale * q in each part of 16, q in -32..31.

/// Least squares over a range of quants, the largest magnitude at either end.
float fit_part_of_16(const float* values) {
  float extreme = 0.0f;
  for (int i = 0; i < 16; ++i) {
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  }
  if (std::fabs(extreme) < kSmallest) return 0.0f;
  float best = 0.0f, best_gain = 0.0f;  // what the sum of squares loses by: (x.q)^2 / q.q
  for (int candidate = -10; candidate <= 10; ++candidate) {
    for (const float end : {-32.0f, 31.0f}) {
      const float inverse = (end + 0.1f * static_cast<float>(candidate)) / extreme;
      float sum_xq = 0.0f, sum_qq = 0.0f;
      for (int i = 0; i < 16; ++i) {
        const float q = quant(values[i], inverse, -32.0f, 31.0f);
        sum_xq += values[i] * q;
        sum_qq += q * q;
      }
      if (!(sum_qq > 0.0f)) continue;
      const float gain = sum_xq / sum_qq * sum_xq;
      if (gain > best_gain) {
        best_gain = gain;
        best = sum_xq / sum_qq;
      }
    }
  }
  return best;
}

struct Q6Part {
  std::int8_t scale = 0;
  double error = 0.0;
  std::array<std::uint8_t, 16> quants{};  // plus 32
};

Q6Part nearest_quants_of_16(const float* values, int scale, float unit) {
  Q6Part result{static_cast<std::int8_t>(scale), 0.0, {}};
  const float whole = unit * static_cast<float>(scale);
  const float inverse = whole == 0.0f ? 0.0f : 1.0f / whole;
  for (std::size_t i = 0; i < 16; ++i) {
    const float q = quant(values[i], inverse, -32.0f, 31.0f);
    const double difference = static_cast<double>(whole * q) - values[i];
    result.error += difference * difference;
    result.quants[i] = static_cast<std::uint8_t>(q + 32.0f);
  }
  return result;
}

Q6Part choose_part_of_16(const float* values, float wanted, float unit) {
  const int at = unit == 0.0f ? 0 : static_cast<int>(nearest_integer(std::clamp(wanted / unit, -128.0f, 127.0f)));
  Q6Part best = nearest_quants_of_16(values, at, unit);
  for (const int step : {-1, 1}) {
    const int scale = std::clamp(at + step, -128, 127);
    const Q6Part other = nearest_quants_of_16(values, scale, unit);
    if (other.error < best.error) best = other;
  }
  return best;
}

}  // namespace

void quantise_q4_k(std::span<const float, 256> values, std::byte* to) {
  std::array<ScaleAndMinimum, 8> wanted;
  float largest_scale = 0.0f, largest_minimum = 0.0f;
  for (std::size_t part = 0; part < 8; ++part) {
    wanted[part] = fit_part(&values[part * 32]);
    largest_scale = std::max(largest_scale, wanted[part].scale);
    largest_minimum = std::max(largest_minimum, wanted[part].minimum);
  }
  const std::uint16_t scale = checked_half(largest_scale / 63.0f);
  const std::uint16_t minimum = checked_half(largest_minimum / 63.0f);
  std::array<Q4Part, 8> parts;
  for (std::size_t part = 0; part < 8; ++part)
    parts[part] = choose_part(&values[part * 32], wanted[part], device::half_to_float(scale), device::half_to_float(minimum));
  put_half(scale, to);
  put_half(minimum, to + 2);
  put_pairs(parts, to + 4);
  for (std::size_t i = 0; i < 128; ++i) {  // 32 bytes hold two neighbouring parts
    const std::size_t pair = i / 32 * 2;
    to[16 + i] = static_cast<std::byte>(parts[pair].quants.quants[i % 32] | parts[pair + 1].quants.quants[i % 32] << 4);
  }
}

void quantise_q6_k(std::span<const float, 256> values, std::byte* to) {
  std::array<float, 16> wanted;
  float extreme = 0.0f;
  for (std::size_t part = 0; part < 16; ++part) {
    wanted[part] = fit_part_of_16(&values[part * 16]);
    if (std::fabs(wanted[part]) > std::fabs(extreme)) extreme = wanted[part];
  }
  const std::uint16_t unit = checked_half(extreme / -128.0f);
  std::array<std::uint8_t, 256> quants;
  for (std::size_t part = 0; part < 16; ++part) {
    const Q6Part chosen = choose_part_of_16(&values[part * 16], wanted[part], device::half_to_float(unit));
    to[192 + part] = static_cast<std::byte>(chosen.scale);
    std::copy(chosen.quants.begin(), chosen.quants.end(), &quants[part * 16]);
  }
  put_half(unit, to + 208);
  for (std::size_t half = 0; half < 2; ++half) {  // each of 128 values: 64 bytes of nibbles, 32 of upper bits
    const std::uint8_t* q = &quants[half * 128];
    for (std::size_t i = 0; i < 32; ++i) {
      to[half * 64 + i] = static_cast<std::byte>((q[i] & 15) | (q[i + 64] & 15) << 4);
      to[half * 64 + 32 + i] = static_cast<std::byte>((q[i + 32] & 15) | (q[i + 96] & 15) << 4);
      to[128 + half * 32 + i] = static_cast<std::byte>(q[i] >> 4 | (q[i + 32] >> 4) << 2 | (q[i + 64] >> 4) << 4 | (q[i + 96] >> 4) << 6);
    }
  }
}

}  // namespace lockstep::engine
