#include "device/cpu/row_sketch.h"

#include <algorithm>
#include <array>
#include <limits>

#include "device/cpu/vocabulary_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

/// 2^f = e^(f ln 2) for |f| <= 1/2: the Taylor series, 1.7e-7 off.
constexpr std::array<float, 7> kPowers = {
    1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f};
constexpr float kShift = 12582912.0f;      // 1.5 * 2^23: adding it rounds to a whole number, which then stands in the lowest bits
constexpr float kSmallestPower = -125.0f;  // what would be smaller counts as 2^-125

/// exp((v - maximum) * scale) = 2^((v - maximum) * (factor + rest)).
struct Exponent {
  float maximum, factor, rest, lowest;
  Exponent(float highest, double scale) : maximum(highest) {
    const double exact = scale * 0x1.71547652b82fep+0;
    factor = static_cast<float>(exact);
    rest = static_cast<float>(exact - static_cast<double>(factor));
    lowest = kSmallestPower / factor;
  }
};

void find_maxima(std::span<const float> chunk, float* maxima) {
  std::fill_n(maxima, kSketchLanes, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < chunk.size(); ++i) maxima[i % kSketchLanes] = std::max(maxima[i % kSketchLanes], chunk[i]);
}

#if defined(__x86_64__)
#define LOCKSTEP_AVX2 [[gnu::target("avx2,fma")]]
#define LOCKSTEP_AVX512 [[gnu::target("avx2,fma,avx512f,avx512dq,avx512vl")]]

LOCKSTEP_AVX2 inline double sum_of(__m256d x) {
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

LOCKSTEP_AVX2 inline __m256 powers8(__m256 v, const Exponent& e) {
  const __m256 factor = _mm256_set1_ps(e.factor), shift = _mm256_set1_ps(kShift);
  const __m256 d = _mm256_max_ps(_mm256_sub_ps(v, _mm256_set1_ps(e.maximum)), _mm256_set1_ps(e.lowest));
  const __m256 shifted = _mm256_fmadd_ps(d, factor, shift);
  const __m256 f = _mm256_fmadd_ps(d, _mm256_set1_ps(e.rest), _mm256_fmsub_ps(d, factor, _mm256_sub_ps(shifted, shift)));
  __m256 p = _mm256_set1_ps(kPowers[0]);
  for (std::size_t i = 1; i < kPowers.size(); ++i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kPowers[i]));
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

LOCKSTEP_AVX2 inline void maxima8(const float* values, float* maxima) {
  __m256 low = _mm256_loadu_ps(values), high = _mm256_loadu_ps(values + 8);
  for (std::size_t at = kSketchLanes; at < kSketchChunk; at += kSketchLanes) {
    low = _mm256_max_ps(low, _mm256_loadu_ps(values + at));
    high = _mm256_max_ps(high, _mm256_loadu_ps(values + at + 8));
  }
  _mm256_storeu_ps(maxima, low);
  _mm256_storeu_ps(maxima + 8, high);
}

LOCKSTEP_AVX2 void maxima_avx2(const float* values, std::size_t chunks, float* maxima) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) maxima8(values + chunk * kSketchChunk, maxima + chunk * kSketchLanes);
}

LOCKSTEP_AVX2 double sketch_avx2(const float* values, std::size_t chunks, const Exponent& e, float* maxima) {
  __m256d total = _mm256_setzero_pd();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk, values += kSketchChunk) {
    maxima8(values, maxima + chunk * kSketchLanes);
    for (std::size_t half = 0; half < kSketchChunk; half += kSketchChunk / 2) {  // so that no lane has a chain of more than four
      __m256 sum[4];
      for (std::size_t i = 0; i < 4; ++i) sum[i] = powers8(_mm256_loadu_ps(values + half + 8 * i), e);
      for (std::size_t at = half + 32; at < half + kSketchChunk / 2; at += 32) {
        for (std::size_t i = 0; i < 4; ++i) sum[i] = _mm256_add_ps(sum[i], powers8(_mm256_loadu_ps(values + at + 8 * i), e));
      }
      const __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(all)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(all, 1));
      total = _mm256_add_pd(total, _mm256_add_pd(low, high));
    }
  }
  return sum_of(total);
}

LOCKSTEP_AVX512 inline __m512 powers16(__m512 v, const Exponent& e) {
  const __m512 factor = _mm512_set1_ps(e.factor), shift = _mm512_set1_ps(kShift);
  const __m512 d = _mm512_maskz_max_ps(0xFFFF, _mm512_sub_ps(v, _mm512_set1_ps(e.maximum)), _mm512_set1_ps(e.lowest));
  const __m512 shifted = _mm512_fmadd_ps(d, factor, shift);
  const __m512 f = _mm512_fmadd_ps(d, _mm512_set1_ps(e.rest), _mm512_fmsub_ps(d, factor, _mm512_sub_ps(shifted, shift)));
  __m512 p = _mm512_set1_ps(kPowers[0]);
  for (std::size_t i = 1; i < kPowers.size(); ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kPowers[i]));
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_maskz_slli_epi32(0xFFFF, _mm512_castps_si512(shifted), 23)));
}

LOCKSTEP_AVX512 double sketch_avx512(const float* values, std::size_t chunks, const Exponent& e, float* maxima) {
  __m512d total = _mm512_setzero_pd();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk, values += kSketchChunk) {
    __m512 sum[4], most = _mm512_loadu_ps(values);
    for (std::size_t i = 0; i < 4; ++i) sum[i] = powers16(_mm512_loadu_ps(values + 16 * i), e);
    for (std::size_t i = 1; i < 4; ++i) most = _mm512_maskz_max_ps(0xFFFF, most, _mm512_loadu_ps(values + 16 * i));
    for (std::size_t at = 64; at < kSketchChunk; at += 64) {
      for (std::size_t i = 0; i < 4; ++i) {
        const __m512 v = _mm512_loadu_ps(values + at + 16 * i);
        most = _mm512_maskz_max_ps(0xFFFF, most, v);
        sum[i] = _mm512_add_ps(sum[i], powers16(v, e));
      }
    }
    _mm512_storeu_ps(maxima + chunk * kSketchLanes, most);
    const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    const __m256 low = _mm512_maskz_extractf32x8_ps(0xFF, all, 0), high = _mm512_maskz_extractf32x8_ps(0xFF, all, 1);
    total = _mm512_add_pd(total, _mm512_add_pd(_mm512_maskz_cvtps_pd(0xFF, low), _mm512_maskz_cvtps_pd(0xFF, high)));
  }
  return sum_of(_mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xFF, total, 0), _mm512_maskz_extractf64x4_pd(0xFF, total, 1)));
}
#endif

}  // namespace

bool can_sketch_mass(double scale) { return scale > 1e-6 && scale < 1e6; }

void sketch_row(std::span<const float> values, float maximum, double scale, Isa isa, RowSketch& sketch) {
  const std::size_t num_chunks = (values.size() + kSketchChunk - 1) / kSketchChunk;
  sketch.maxima.resize(num_chunks * kSketchLanes);
  sketch.mass = 0.0;
  std::size_t chunks = 0;  // that are done
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) {
    chunks = values.size() / kSketchChunk;
    if (scale == 0.0) {
      maxima_avx2(values.data(), chunks, sketch.maxima.data());
    } else {
      const Exponent exponent(maximum, scale);
      sketch.mass = isa >= Isa::kAvx512 ? sketch_avx512(values.data(), chunks, exponent, sketch.maxima.data())
                                        : sketch_avx2(values.data(), chunks, exponent, sketch.maxima.data());
    }
  }
#endif
  for (; chunks < num_chunks; ++chunks) {
    const std::span<const float> rest = values.subspan(chunks * kSketchChunk);
    const std::span<const float> chunk = rest.first(std::min(kSketchChunk, rest.size()));
    find_maxima(chunk, sketch.maxima.data() + chunks * kSketchLanes);
    if (scale != 0.0) sketch.mass += sum_of_exponentials(chunk, maximum, scale, isa);
  }
}

}  // namespace lockstep::device
