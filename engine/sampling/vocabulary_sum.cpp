#include "engine/sampling/vocabulary_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace lockstep::engine {
namespace {

constexpr std::size_t kSegment = 16;
constexpr double kSmallestExponent = -708.0;  // exp of less would be subnormal, or nearly so: such a weight is 0

/// exp(x) for -708 <= x <= 0, within 2 ulp: x = k ln 2 + r with |r| <= ln 2 / 2, and the Taylor series in r. Over fused multiply-add alone,
/// so the same bits everywhere, and without a branch, so that the compiler can make vectors of it: half of the work of sampling is here.
/// (device::portable::exp is ten times slower.)
[[gnu::always_inline]] inline double exponential(double x) {
  constexpr double kShift = 0x1.8p52;  // adding it rounds to a whole number, which then stands in the lowest bits
  const double shifted = std::fma(x, 0x1.71547652b82fep+0, kShift);
  const double k = shifted - kShift;
  double r = std::fma(k, -0x1.62e42fefa39efp-1, x);
  r = std::fma(k, -0x1.abc9e3b39803fp-56, r);
  double sum = 1.0 / 6227020800.0;
  for (const double term : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0,
                            1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    sum = std::fma(sum, r, term);
  }
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;
  return sum * std::bit_cast<double>(exponent);
}

[[gnu::always_inline]] inline double weight(float value, double maximum, double scale) {
  const double exponent = (static_cast<double>(value) - maximum) * scale;
  const double result = exponential(exponent < kSmallestExponent ? kSmallestExponent : exponent);
  return exponent < kSmallestExponent ? 0.0 : result;
}

/// Adds terms that come in order along the tree, as a binary counter counts: entry i of the stack is a whole subtree.
class TreeAdder {
 public:
  void push(double value) {
    for (std::size_t merges = static_cast<std::size_t>(std::countr_one(count_)); merges > 0; --merges) value = stack_[--depth_] + value;
    stack_[depth_++] = value;
    ++count_;
  }
  double finish() {
    if (depth_ == 0) return 0.0;
    double value = stack_[--depth_];
    while (depth_ > 0) value = stack_[--depth_] + value;
    return value;
  }

 private:
  std::array<double, 64> stack_{};
  std::size_t depth_ = 0;
  std::uint64_t count_ = 0;
};

[[gnu::always_inline]] inline double segment_sum(std::array<double, kSegment>& terms) {
  for (std::size_t width = kSegment / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  return terms[0];
}

/// The one algorithm, compiled below for more than one instruction set: std::fma is the same bits as an instruction or as a call, only
/// slower as the latter.
[[gnu::always_inline]] inline double sum_over(std::span<const float> values, double maximum, double scale) {
  TreeAdder adder;
  std::array<double, kSegment> terms;
  std::size_t first = 0;
  for (; first + kSegment <= values.size(); first += kSegment) {
    for (std::size_t i = 0; i < kSegment; ++i) terms[i] = weight(values[first + i], maximum, scale);
    adder.push(segment_sum(terms));
  }
  if (first < values.size()) {
    terms.fill(0.0);
    for (std::size_t i = 0; first + i < values.size(); ++i) terms[i] = weight(values[first + i], maximum, scale);
    adder.push(segment_sum(terms));
  }
  return adder.finish();
}

double sum_portable(std::span<const float> values, double maximum, double scale) { return sum_over(values, maximum, scale); }

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] double sum_avx2(std::span<const float> values, double maximum, double scale) {
  return sum_over(values, maximum, scale);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }
#endif

using Weights = std::span<const std::pair<std::uint32_t, double>>;

/// The node of the tree over ids [begin, end). A part without an entry adds 0, which changes nothing, so it is not visited.
double sum_of_node(Weights weights, std::size_t begin, std::size_t end) {
  if (weights.empty()) return 0.0;
  if (weights.size() == 1) return weights.front().second;
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  const auto split = std::partition_point(weights.begin(), weights.end(), [&](const auto& entry) { return entry.first < middle; });
  const auto below = static_cast<std::size_t>(split - weights.begin());
  return sum_of_node(weights.first(below), begin, middle) + sum_of_node(weights.subspan(below), middle, end);
}

}  // namespace

float maximum(std::span<const float> values) {
  std::array<float, kSegment> lanes;  // independent maxima, so that the loop is not one chain
  lanes.fill(values[0]);
  std::size_t first = 0;
  for (; first + kSegment <= values.size(); first += kSegment) {
    for (std::size_t i = 0; i < kSegment; ++i) lanes[i] = std::max(lanes[i], values[first + i]);
  }
  for (; first < values.size(); ++first) lanes[0] = std::max(lanes[0], values[first]);
  return *std::max_element(lanes.begin(), lanes.end());
}

double sum_of_exponentials(std::span<const float> values, float maximum, double scale) {
#if defined(__x86_64__)
  if (has_avx2()) return sum_avx2(values, static_cast<double>(maximum), scale);
#endif
  return sum_portable(values, static_cast<double>(maximum), scale);
}

double sum_of_weights(std::span<const std::pair<std::uint32_t, double>> weights, std::size_t vocab_size) {
  return sum_of_node(weights, 0, vocab_size);
}

double weight_of(float value, float maximum, double scale) { return weight(value, static_cast<double>(maximum), scale); }

}  // namespace lockstep::engine
