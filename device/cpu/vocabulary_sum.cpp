#include "device/cpu/vocabulary_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::size_t kSegment = kVocabularySegment;
constexpr double kSmallestExponent = -708.0;  // exp of less would be subnormal, or nearly so: such a weight is 0

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kMinusLn2High = -0x1.62e42fefa39efp-1;
constexpr double kMinusLn2Low = -0x1.abc9e3b39803fp-56;
constexpr double kShift = 0x1.8p52;  // adding it rounds to a whole number, which then stands in the lowest bits
constexpr std::array<double, 14> kTaylor = {1.0 / 6227020800.0,
                                            1.0 / 479001600.0,
                                            1.0 / 39916800.0,
                                            1.0 / 3628800.0,
                                            1.0 / 362880.0,
                                            1.0 / 40320.0,
                                            1.0 / 5040.0,
                                            1.0 / 720.0,
                                            1.0 / 120.0,
                                            1.0 / 24.0,
                                            1.0 / 6.0,
                                            0.5,
                                            1.0,
                                            1.0};

/// exp(x) for -708 <= x <= 0, within 2 ulp: x = k ln 2 + r with |r| <= ln 2 / 2, and the Taylor series in r. Over fused multiply-add alone,
/// so the same bits everywhere. (device::portable::exp is ten times slower.)
[[gnu::always_inline]] inline double exponential(double x) {
  const double shifted = std::fma(x, kLog2E, kShift);
  const double k = shifted - kShift;
  double r = std::fma(k, kMinusLn2High, x);
  r = std::fma(k, kMinusLn2Low, r);
  double sum = kTaylor[0];
  for (std::size_t i = 1; i < kTaylor.size(); ++i) sum = std::fma(sum, r, kTaylor[i]);
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;
  return sum * std::bit_cast<double>(exponent);
}

[[gnu::always_inline]] inline double weight(float value, double maximum, double scale) {
  const double exponent = (static_cast<double>(value) - maximum) * scale;
  const double result = exponential(exponent < kSmallestExponent ? kSmallestExponent : exponent);
  return exponent < kSmallestExponent ? 0.0 : result;
}

[[gnu::always_inline]] inline double segment_sum(std::array<double, kSegment>& terms) {
  for (std::size_t width = kSegment / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  return terms[0];
}

/// Segment by segment: what is left behind whole groups, and everything where there are no vectors. Inlined, so that a fused multiply-add
/// is an instruction where it can be, not a call of the C library.
[[gnu::always_inline]] inline double sum_rest(std::span<const float> values, double maximum, double scale, TreeAdder& adder) {
  std::array<double, kSegment> terms;
  for (std::size_t first = 0; first < values.size(); first += kSegment) {
    terms.fill(0.0);
    const std::size_t count = std::min(kSegment, values.size() - first);
    for (std::size_t i = 0; i < count; ++i) terms[i] = weight(values[first + i], maximum, scale);
    adder.push(segment_sum(terms), 1);
  }
  return adder.finish();
}

#if defined(__x86_64__)
constexpr std::size_t kGroup = 8;  // segments whose sums are added up side by side

#define LOCKSTEP_AVX2 [[gnu::target("avx2,fma")]]
#define LOCKSTEP_AVX512 [[gnu::target("avx2,fma,avx512f,avx512dq,avx512vl")]]

/// weight() where a fused multiply-add is an instruction: the same bits.
[[gnu::target("fma")]] double weight_fma(float value, double maximum, double scale) { return weight(value, maximum, scale); }

// weight(), four and eight at a time.
LOCKSTEP_AVX2 inline __m256d weights4(const float* values, __m256d maximum, __m256d scale) {
  const __m256d smallest = _mm256_set1_pd(kSmallestExponent), shift = _mm256_set1_pd(kShift);
  const __m256d exponent = _mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(values)), maximum), scale);
  const __m256d x = _mm256_max_pd(smallest, exponent);  // a NaN stays
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(kLog2E), shift);
  const __m256d k = _mm256_sub_pd(shifted, shift);
  __m256d r = _mm256_fmadd_pd(k, _mm256_set1_pd(kMinusLn2High), x);
  r = _mm256_fmadd_pd(k, _mm256_set1_pd(kMinusLn2Low), r);
  __m256d sum = _mm256_set1_pd(kTaylor[0]);
  for (std::size_t i = 1; i < kTaylor.size(); ++i) sum = _mm256_fmadd_pd(sum, r, _mm256_set1_pd(kTaylor[i]));
  const __m256i power = _mm256_slli_epi64(_mm256_add_epi64(_mm256_castpd_si256(shifted), _mm256_set1_epi64x(1023)), 52);
  return _mm256_andnot_pd(_mm256_cmp_pd(exponent, smallest, _CMP_LT_OQ), _mm256_mul_pd(sum, _mm256_castsi256_pd(power)));
}

/// [A, B, C, D]: the sums of terms 0-3, 4-7, 8-11 and 12-15 of a segment.
LOCKSTEP_AVX2 inline __m256d quarters(const float* values, __m256d maximum, __m256d scale) {
  const __m256d low = _mm256_hadd_pd(weights4(values, maximum, scale), weights4(values + 4, maximum, scale));
  const __m256d high = _mm256_hadd_pd(weights4(values + 8, maximum, scale), weights4(values + 12, maximum, scale));
  return _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x20), _mm256_permute2f128_pd(low, high, 0x31));
}

LOCKSTEP_AVX2 inline double four_segments(const float* values, __m256d maximum, __m256d scale) {
  const __m256d first = _mm256_hadd_pd(quarters(values, maximum, scale), quarters(values + kSegment, maximum, scale));
  const __m256d second = _mm256_hadd_pd(quarters(values + 2 * kSegment, maximum, scale), quarters(values + 3 * kSegment, maximum, scale));
  const __m256d sums = _mm256_add_pd(_mm256_permute2f128_pd(first, second, 0x20), _mm256_permute2f128_pd(first, second, 0x31));
  alignas(32) std::array<double, 4> sum;
  _mm256_store_pd(sum.data(), sums);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

LOCKSTEP_AVX2 double sum_avx2(std::span<const float> values, double maximum, double scale) {
  TreeAdder adder;
  std::size_t first = 0;
  for (; first + kGroup * kSegment <= values.size(); first += kGroup * kSegment) {
    const float* group = values.data() + first;
    const double low = four_segments(group, _mm256_set1_pd(maximum), _mm256_set1_pd(scale));
    adder.push(low + four_segments(group + 4 * kSegment, _mm256_set1_pd(maximum), _mm256_set1_pd(scale)), kGroup);
  }
  return sum_rest(values.subspan(first), maximum, scale, adder);
}

LOCKSTEP_AVX2 float maximum_avx2(std::span<const float> values) {
  constexpr std::size_t kStride = 32;  // four independent chains
  float highest = values[0];
  std::size_t first = 0;
  if (values.size() >= kStride) {
    __m256 lanes[4];
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = _mm256_loadu_ps(values.data() + 8 * i);
    for (first = kStride; first + kStride <= values.size(); first += kStride) {
      for (std::size_t i = 0; i < 4; ++i) lanes[i] = _mm256_max_ps(lanes[i], _mm256_loadu_ps(values.data() + first + 8 * i));
    }
    alignas(32) std::array<float, 8> last;
    _mm256_store_ps(last.data(), _mm256_max_ps(_mm256_max_ps(lanes[0], lanes[1]), _mm256_max_ps(lanes[2], lanes[3])));
    highest = *std::max_element(last.begin(), last.end());
  }
  for (; first < values.size(); ++first) highest = highest < values[first] ? values[first] : highest;
  return highest;
}

LOCKSTEP_AVX512 inline __m512d weights8(const float* values, __m512d maximum, __m512d scale) {
  const __m512d smallest = _mm512_set1_pd(kSmallestExponent), shift = _mm512_set1_pd(kShift);
  const __m512d exponent = _mm512_mul_pd(_mm512_sub_pd(_mm512_cvtps_pd(_mm256_loadu_ps(values)), maximum), scale);
  const __m512d x = _mm512_max_pd(smallest, exponent);
  const __m512d shifted = _mm512_fmadd_pd(x, _mm512_set1_pd(kLog2E), shift);
  const __m512d k = _mm512_sub_pd(shifted, shift);
  __m512d r = _mm512_fmadd_pd(k, _mm512_set1_pd(kMinusLn2High), x);
  r = _mm512_fmadd_pd(k, _mm512_set1_pd(kMinusLn2Low), r);
  __m512d sum = _mm512_set1_pd(kTaylor[0]);
  for (std::size_t i = 1; i < kTaylor.size(); ++i) sum = _mm512_fmadd_pd(sum, r, _mm512_set1_pd(kTaylor[i]));
  const __m512i power = _mm512_slli_epi64(_mm512_add_epi64(_mm512_castpd_si512(shifted), _mm512_set1_epi64(1023)), 52);
  return _mm512_maskz_mul_pd(_mm512_cmp_pd_mask(exponent, smallest, _CMP_NLT_UQ), sum, _mm512_castsi512_pd(power));
}

/// Neighbours added up: pairs of a, then of b, 128 bits of each in turn.
LOCKSTEP_AVX512 inline __m512d add_pairs(__m512d a, __m512d b) { return _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)); }
/// Neighbouring halves of 256 bits added up: those of a, then of b.
LOCKSTEP_AVX512 inline __m512d add_lanes(__m512d a, __m512d b) {
  return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
}

/// [terms 0-1, 8-9, 2-3, 10-11, ...] of a segment.
LOCKSTEP_AVX512 inline __m512d pairs(const float* values, __m512d maximum, __m512d scale) {
  return add_pairs(weights8(values, maximum, scale), weights8(values + 8, maximum, scale));
}

/// [terms 0-7, terms 8-15] of four segments.
LOCKSTEP_AVX512 inline __m512d halves(const float* values, __m512d maximum, __m512d scale) {
  const __m512d first = add_lanes(pairs(values, maximum, scale), pairs(values + kSegment, maximum, scale));
  const __m512d second = add_lanes(pairs(values + 2 * kSegment, maximum, scale), pairs(values + 3 * kSegment, maximum, scale));
  return add_lanes(first, second);
}

LOCKSTEP_AVX512 double sum_avx512(std::span<const float> values, double maximum, double scale) {
  TreeAdder adder;
  std::size_t first = 0;
  const __m512d maxima = _mm512_set1_pd(maximum), scales = _mm512_set1_pd(scale);
  for (; first + kGroup * kSegment <= values.size(); first += kGroup * kSegment) {
    const float* group = values.data() + first;
    // [s0, s4, s1, s5, s2, s6, s3, s7]
    const __m512d segments = add_pairs(halves(group, maxima, scales), halves(group + 4 * kSegment, maxima, scales));
    const __m512d twos = add_lanes(segments, segments);  // [s0-1, s4-5, s2-3, s6-7], twice
    alignas(64) std::array<double, 8> sum;
    _mm512_store_pd(sum.data(), twos);
    adder.push((sum[0] + sum[2]) + (sum[1] + sum[3]), kGroup);
  }
  return sum_rest(values.subspan(first), maximum, scale, adder);
}
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

float maximum(std::span<const float> values, Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) return maximum_avx2(values);
#endif
  static_cast<void>(isa);
  return *std::max_element(values.begin(), values.end());
}

double sum_of_exponentials(std::span<const float> values, float maximum, double scale, Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return sum_avx512(values, static_cast<double>(maximum), scale);
  if (isa == Isa::kAvx2) return sum_avx2(values, static_cast<double>(maximum), scale);
#endif
  static_cast<void>(isa);
  TreeAdder adder;
  return sum_rest(values, static_cast<double>(maximum), scale, adder);
}

double sum_of_weights(std::span<const std::pair<std::uint32_t, double>> weights, std::size_t vocab_size) {
  return sum_of_node(weights, 0, vocab_size);
}

double weight_of(float value, float maximum, double scale) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma")) return weight_fma(value, static_cast<double>(maximum), scale);
#endif
  return weight(value, static_cast<double>(maximum), scale);
}

}  // namespace lockstep::device
