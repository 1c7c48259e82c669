#include "device/cpu/row_sketch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "device/cpu/kernel_macros.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::size_t kChunk = 256;  // values whose maxima are found, and whose powers are added up, side by side

/// 2^f, highest power first: the polynomials of that degree whose largest relative error is least, 2.6e-6 (2.7e-6 in fp32).
using Polynomial = std::array<float, 5>;
constexpr Polynomial kNearZero = {0.00957010221f, 0.0559178591f, 0.240247443f, 0.693121791f, 0.999999285f};  // |f| <= 1/2
constexpr Polynomial kAboveZero = {0.0135341678f, 0.0520114601f, 0.241442755f, 0.693003833f, 1.00000262f};   // 0 <= f <= 1
constexpr float kShift = 12582912.0f;      // 1.5 * 2^23: adding it rounds to a whole number, which then stands in the lowest bits
constexpr float kSmallestPower = -120.0f;  // what would be smaller counts as 2^-120: subnormal results take a hundred times as long
constexpr double kMostPower = 0x1p21;      // so that kShift can have a whole number added

/// exp((v - maximum) * scale) = 2^(v * factor + whole) * unit. A whole number, so that only v * factor is ever rounded.
struct Exponent {
  float factor, whole, lowest;
  double unit;
  bool fits;
  Exponent(float maximum, double scale) : factor(static_cast<float>(scale * 0x1.71547652b82fep+0)) {
    const double highest = static_cast<double>(maximum) * static_cast<double>(factor), ceiling = std::ceil(highest);
    fits = std::abs(ceiling) <= kMostPower;
    whole = fits ? static_cast<float>(-ceiling) : 0.0f;
    lowest = (kSmallestPower - whole) / factor;
    unit = std::exp2(ceiling - highest);
  }
};

struct Maxima {
  float highest = -std::numeric_limits<float>::infinity();
  bool finite = true;
};

/// Group by group: what is left behind whole chunks, and everything where there are no vectors.
Maxima maxima_of_rest(std::span<const float> values, float* maxima) {
  Maxima all;
  float check = 0.0f;
  for (std::size_t first = 0; first < values.size(); first += kSketchGroup) {
    float most = -std::numeric_limits<float>::infinity();
    for (const float value : values.subspan(first, std::min(kSketchGroup, values.size() - first))) {
      most = std::max(most, value);
      check += value * 0.0f;  // NaN for what is not finite
    }
    *maxima++ = most;
    all.highest = std::max(all.highest, most);
  }
  all.finite = check == 0.0f;
  return all;
}

#if defined(__x86_64__)
#define LOCKSTEP_AVX2 [[gnu::target("avx2,fma")]]
#define LOCKSTEP_AVX512 [[gnu::target("avx2,fma,avx512f,avx512dq,avx512vl")]]

LOCKSTEP_AVX2 inline double sum_of(__m256d x) {
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

LOCKSTEP_AVX2 inline float highest_of(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

LOCKSTEP_AVX2 Maxima maxima_avx2(const float* values, std::size_t chunks, float* maxima) {
  Maxima all;
  __m256 most = _mm256_set1_ps(all.highest), group[8], checks[4];
  for (__m256& check : checks) check = _mm256_setzero_ps();
  for (const float* end = values + chunks * kChunk; values != end; values += 8 * kSketchGroup, maxima += 8) {
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 8; ++i) {
      const __m256 low = _mm256_loadu_ps(values + kSketchGroup * i), high = _mm256_loadu_ps(values + kSketchGroup * i + 8);
      checks[i % 4] = _mm256_fmadd_ps(low, _mm256_setzero_ps(), _mm256_fmadd_ps(high, _mm256_setzero_ps(), checks[i % 4]));
      group[i] = _mm256_max_ps(low, high);
    }
    // Each round halves what a group still has, and brings two groups together.
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 4; ++i)
      group[i] = _mm256_max_ps(_mm256_unpacklo_ps(group[2 * i], group[2 * i + 1]), _mm256_unpackhi_ps(group[2 * i], group[2 * i + 1]));
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 2; ++i) {
      const __m256d a = _mm256_castps_pd(group[2 * i]), b = _mm256_castps_pd(group[2 * i + 1]);
      group[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    const __m256 found = _mm256_max_ps(_mm256_permute2f128_ps(group[0], group[1], 0x20), _mm256_permute2f128_ps(group[0], group[1], 0x31));
    _mm256_storeu_ps(maxima, found);
    most = _mm256_max_ps(most, found);
  }
  const __m256 check = _mm256_add_ps(_mm256_add_ps(checks[0], checks[1]), _mm256_add_ps(checks[2], checks[3]));
  all.highest = highest_of(most);
  all.finite = _mm256_movemask_ps(_mm256_cmp_ps(check, _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
  return all;
}

LOCKSTEP_AVX2 inline __m256 powers8(__m256 v, const Exponent& e) {
  const __m256 factor = _mm256_set1_ps(e.factor), shift = _mm256_set1_ps(kShift + e.whole);
  const __m256 clamped = _mm256_max_ps(v, _mm256_set1_ps(e.lowest));
  const __m256 shifted = _mm256_fmadd_ps(clamped, factor, shift);
  const __m256 f = _mm256_fmsub_ps(clamped, factor, _mm256_sub_ps(shifted, shift));
  __m256 p = _mm256_set1_ps(kNearZero[0]);
  LOCKSTEP_UNROLL
  for (std::size_t i = 1; i < kNearZero.size(); ++i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kNearZero[i]));
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

/// @param ahead  from `values` to what will be read next, in floats
LOCKSTEP_AVX2 double mass_avx2(const float* values, std::size_t chunks, const Exponent& e, std::ptrdiff_t ahead) {
  __m256d total = _mm256_setzero_pd();
  for (std::size_t half = 0; half < 2 * chunks; ++half, values += kChunk / 2) {  // so that no lane has a chain of more than four
    __m256 sum[4];
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 4; ++i) sum[i] = powers8(_mm256_loadu_ps(values + 8 * i), e);
    for (std::size_t at = 32; at < kChunk / 2; at += 32) {
      LOCKSTEP_UNROLL
      for (std::size_t i = 0; i < 4; ++i) sum[i] = _mm256_add_ps(sum[i], powers8(_mm256_loadu_ps(values + at + 8 * i), e));
    }
    for (std::size_t at = 0; at < kChunk / 2; at += kSketchGroup) __builtin_prefetch(values + at + ahead);
    const __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(all)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(all, 1));
    total = _mm256_add_pd(total, _mm256_add_pd(low, high));
  }
  return sum_of(total);
}

LOCKSTEP_AVX512 inline __m512 max16(__m512 a, __m512 b) { return _mm512_maskz_max_ps(0xFFFF, a, b); }
LOCKSTEP_AVX512 inline __m512 max_of_quarters(__m512 a, __m512 b) {
  return max16(_mm512_maskz_shuffle_f32x4(0xFFFF, a, b, 0x88), _mm512_maskz_shuffle_f32x4(0xFFFF, a, b, 0xDD));
}

LOCKSTEP_AVX512 Maxima maxima_avx512(const float* values, std::size_t chunks, float* maxima) {
  Maxima all;
  __m512 most = _mm512_set1_ps(all.highest), group[16], checks[4];
  for (__m512& check : checks) check = _mm512_setzero_ps();
  for (const float* end = values + chunks * kChunk; values != end; values += kChunk, maxima += 16) {
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 16; ++i) {
      group[i] = _mm512_loadu_ps(values + kSketchGroup * i);
      checks[i % 4] = _mm512_fmadd_ps(group[i], _mm512_setzero_ps(), checks[i % 4]);
    }
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 8; ++i)
      group[i] = max16(_mm512_maskz_unpacklo_ps(0xFFFF, group[2 * i], group[2 * i + 1]),
                       _mm512_maskz_unpackhi_ps(0xFFFF, group[2 * i], group[2 * i + 1]));
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(group[2 * i]), b = _mm512_castps_pd(group[2 * i + 1]);
      group[i] = max16(_mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xFF, a, b)), _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xFF, a, b)));
    }
    const __m512 found = max_of_quarters(max_of_quarters(group[0], group[1]), max_of_quarters(group[2], group[3]));
    _mm512_storeu_ps(maxima, found);
    most = max16(most, found);
  }
  const __m512 check = _mm512_add_ps(_mm512_add_ps(checks[0], checks[1]), _mm512_add_ps(checks[2], checks[3]));
  all.highest = highest_of(_mm256_max_ps(_mm512_maskz_extractf32x8_ps(0xFF, most, 0), _mm512_maskz_extractf32x8_ps(0xFF, most, 1)));
  all.finite = _mm512_cmp_ps_mask(check, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
  return all;
}

LOCKSTEP_AVX512 inline __m512 powers16(__m512 v, const Exponent& e) {
  const __m512 clamped = max16(v, _mm512_set1_ps(e.lowest));
  const __m512 x = _mm512_fmadd_ps(clamped, _mm512_set1_ps(e.factor), _mm512_set1_ps(e.whole));
  const __m512 f = _mm512_maskz_reduce_ps(0xFFFF, x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  __m512 p = _mm512_set1_ps(kAboveZero[0]);
  LOCKSTEP_UNROLL
  for (std::size_t i = 1; i < kAboveZero.size(); ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kAboveZero[i]));
  return _mm512_maskz_scalef_ps(0xFFFF, p, x);  // p * 2^floor(x)
}

LOCKSTEP_AVX512 double mass_avx512(const float* values, std::size_t chunks, const Exponent& e, std::ptrdiff_t ahead) {
  __m512d total = _mm512_setzero_pd();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk, values += kChunk) {
    __m512 sum[4];
    LOCKSTEP_UNROLL
    for (std::size_t i = 0; i < 4; ++i) sum[i] = powers16(_mm512_loadu_ps(values + 16 * i), e);
    for (std::size_t at = 64; at < kChunk; at += 64) {
      LOCKSTEP_UNROLL
      for (std::size_t i = 0; i < 4; ++i) sum[i] = _mm512_add_ps(sum[i], powers16(_mm512_loadu_ps(values + at + 16 * i), e));
    }
    for (std::size_t at = 0; at < kChunk; at += kSketchGroup) __builtin_prefetch(values + at + ahead);
    const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    const __m256 low = _mm512_maskz_extractf32x8_ps(0xFF, all, 0), high = _mm512_maskz_extractf32x8_ps(0xFF, all, 1);
    total = _mm512_add_pd(total, _mm512_add_pd(_mm512_maskz_cvtps_pd(0xFF, low), _mm512_maskz_cvtps_pd(0xFF, high)));
  }
  return sum_of(_mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xFF, total, 0), _mm512_maskz_extractf64x4_pd(0xFF, total, 1)));
}
#endif

}  // namespace

bool can_sketch_mass(double scale) { return scale > 1e-6 && scale < 1e6; }

SketchedPart sketch_part(std::span<const float> values, double scale, Isa isa, float* maxima, const float* next) {
  std::size_t chunks = 0;  // for vectors
  Maxima found;
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) chunks = values.size() / kChunk;
  if (chunks > 0) found = isa >= Isa::kAvx512 ? maxima_avx512(values.data(), chunks, maxima) : maxima_avx2(values.data(), chunks, maxima);
#endif
  const Maxima behind = maxima_of_rest(values.subspan(chunks * kChunk), maxima + chunks * kChunk / kSketchGroup);
  SketchedPart part{{std::max(found.highest, behind.highest), 0.0}, found.finite && behind.finite};
  if (scale == 0.0 || !std::isfinite(part.mass.maximum)) return part;
  std::size_t summed = 0;
#if defined(__x86_64__)
  if (const Exponent exponent(part.mass.maximum, scale); chunks > 0 && exponent.fits) {
    const std::ptrdiff_t ahead = next == nullptr ? 0 : next - values.data();
    part.mass.mass = exponent.unit * (isa >= Isa::kAvx512 ? mass_avx512(values.data(), chunks, exponent, ahead)
                                                          : mass_avx2(values.data(), chunks, exponent, ahead));
    summed = chunks * kChunk;
  }
#endif
  static_cast<void>(next);
  if (summed < values.size()) part.mass.mass += sum_of_exponentials(values.subspan(summed), part.mass.maximum, scale, isa);
  return part;
}

}  // namespace lockstep::device
