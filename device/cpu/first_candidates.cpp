#include "device/cpu/first_candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "device/cpu/row_sketch.h"
#include "device/cpu/vocabulary_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::size_t kStride = kSketchGroup;
constexpr float kNone = -std::numeric_limits<float>::infinity();

/// The first stride from `first` on of whose values one is above `bound`, and which of them are; where fewer values are left than a stride
/// has, those that are left, none marked.
struct Stride {
  std::size_t first;
  std::uint32_t above;  // bit i: value first + i
};

Stride next_portable(std::span<const float> values, std::size_t first, float bound) {
  for (; first + kStride <= values.size(); first += kStride) {
    std::uint32_t above = 0;
    for (std::size_t i = 0; i < kStride; ++i) above |= std::uint32_t{values[first + i] > bound} << i;
    if (above != 0) return {first, above};
  }
  return {first, 0};
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline std::uint32_t above8(const float* values, __m256 bounds) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values), bounds, _CMP_GT_OQ)));
}

[[gnu::target("avx2")]] Stride next_avx2(std::span<const float> values, std::size_t first, float bound) {
  const __m256 bounds = _mm256_set1_ps(bound);
  for (; first + kStride <= values.size(); first += kStride) {
    const float* at = values.data() + first;
    const std::uint32_t above = above8(at, bounds) | above8(at + 8, bounds) << 8;
    if (above != 0) return {first, above};
  }
  return {first, 0};
}
#endif

Stride next(std::span<const float> values, std::size_t first, float bound, Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) return next_avx2(values, first, bound);
#endif
  static_cast<void>(isa);
  return next_portable(values, first, bound);
}

/// op(i) for every value above `bound`; it may give a higher one, from the next stride on.
template <class Op>
void for_each_above(std::span<const float> values, const float& bound, Isa isa, const Op& op) {
  std::size_t first = 0;
  while (first + kStride <= values.size()) {
    const Stride stride = next(values, first, bound, isa);
    for (std::uint32_t above = stride.above; above != 0; above &= above - 1)
      op(stride.first + static_cast<std::size_t>(std::countr_zero(above)));
    first = stride.above == 0 ? stride.first : stride.first + kStride;
  }
  for (; first < values.size(); ++first) {
    if (values[first] > bound) op(first);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] inline __m512i keys_of(__m256i order, __m256i ids) {
  return _mm512_or_epi64(_mm512_maskz_slli_epi64(0xFF, _mm512_maskz_cvtepu32_epi64(0xFF, order), 32),
                         _mm512_maskz_cvtepu32_epi64(0xFF, ids));
}

/// Without a branch for each value: which of a group are above the bound nobody can foresee.
[[gnu::target("avx512f,popcnt")]] std::size_t append_above_avx512(std::span<const float> values, std::size_t first, float bound,
                                                                  std::vector<std::uint64_t>& keys, std::size_t used) {
  const __m512 bounds = _mm512_set1_ps(bound);
  const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (std::size_t at = 0; at < values.size(); at += kStride) {
    const auto all = static_cast<__mmask16>(values.size() - at < kStride ? (1u << (values.size() - at)) - 1 : 0xFFFFu);
    const __m512 logits = _mm512_maskz_loadu_ps(all, values.data() + at);
    const __mmask16 above = _mm512_mask_cmp_ps_mask(all, logits, bounds, _CMP_GT_OQ);
    if (above == 0) continue;
    if (keys.size() < used + kStride) keys.resize(2 * keys.size() + kStride);
    // candidate_key of 16 values
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(logits, _mm512_setzero_ps()));
    const __mmask16 positive = _mm512_cmpge_epi32_mask(bits, _mm512_setzero_si512());
    const __m512i order = _mm512_mask_xor_epi32(bits, positive, bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i ids = _mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int>(first + at)));
    const __m512i low = keys_of(_mm512_castsi512_si256(order), _mm512_castsi512_si256(ids));
    const __m512i high = keys_of(_mm512_maskz_extracti64x4_epi64(0xF, order, 1), _mm512_maskz_extracti64x4_epi64(0xF, ids, 1));
    std::uint64_t* to = keys.data() + used;
    const std::size_t num_low = static_cast<std::size_t>(__builtin_popcount(above & 0xFFu));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(static_cast<__mmask8>(above), low));
    _mm512_storeu_si512(to + num_low, _mm512_maskz_compress_epi64(static_cast<__mmask8>(above >> 8), high));
    used += static_cast<std::size_t>(__builtin_popcount(above));
  }
  return used;
}
#endif

/// Writes the keys of the values above `bound` behind the first `used` keys, and returns how many are used then; others may follow.
/// @param first  id of the first value
std::size_t append_above(std::span<const float> values, std::size_t first, float bound, Isa isa, std::vector<std::uint64_t>& keys,
                         std::size_t used) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return append_above_avx512(values, first, bound, keys, used);
#endif
  keys.resize(used);
  for_each_above(values, bound, isa,
                 [&](std::size_t place) { keys.push_back(candidate_key(values[place], static_cast<std::uint32_t>(first + place))); });
  return keys.size();
}

/// How many are not below `bound`.
std::size_t num_from_portable(std::span<const float> values, float bound) {
  return static_cast<std::size_t>(std::count_if(values.begin(), values.end(), [bound](float value) { return value >= bound; }));
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::size_t num_from_avx2(std::span<const float> values, float bound) {
  constexpr std::size_t kTogether = 16;
  const __m256 bounds = _mm256_set1_ps(bound);
  __m256i low = _mm256_setzero_si256(), high = low;  // less one for each
  std::size_t first = 0;
  for (; first + kTogether <= values.size(); first += kTogether) {
    low = _mm256_add_epi32(low, _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(values.data() + first), bounds, _CMP_GE_OQ)));
    high = _mm256_add_epi32(high, _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(values.data() + first + 8), bounds, _CMP_GE_OQ)));
  }
  alignas(32) std::array<std::int32_t, 8> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), _mm256_add_epi32(low, high));
  return num_from_portable(values.subspan(first), bound) - static_cast<std::size_t>(std::accumulate(lanes.begin(), lanes.end(), 0));
}

[[gnu::target("avx512f,popcnt")]] std::size_t num_from_avx512(std::span<const float> values, float bound) {
  constexpr std::size_t kTogether = 16;
  const __m512 bounds = _mm512_set1_ps(bound);
  std::size_t first = 0, reached = 0;
  for (; first + kTogether <= values.size(); first += kTogether)
    reached += static_cast<std::size_t>(__builtin_popcount(_mm512_cmp_ps_mask(_mm512_loadu_ps(values.data() + first), bounds, _CMP_GE_OQ)));
  return reached + num_from_portable(values.subspan(first), bound);
}
#endif

std::size_t num_from(std::span<const float> values, float bound, Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return num_from_avx512(values, bound);
  if (isa >= Isa::kAvx2) return num_from_avx2(values, bound);
#endif
  static_cast<void>(isa);
  return num_from_portable(values, bound);
}

void keep_best(std::vector<std::uint64_t>& keys, std::size_t count) {
  if (keys.size() <= count) return;
  std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count) - 1, keys.end());
  keys.resize(count);
}

/// Keeps twice as many keys as are wanted, and drops the worse half whenever they are full: nearly every id fails the first comparison.
class BestKeys {
 public:
  BestKeys(std::span<const float> logits, std::size_t count, Isa isa, std::vector<std::uint64_t>& keys)
      : logits_(logits), count_(count), isa_(isa), keys_(keys) {
    keys_.clear();
    keys_.reserve(2 * count);
  }

  void take(std::size_t id) {
    if (has_last_ && !(logits_[id] > below_)) return;
    const std::uint64_t key = candidate_key(logits_[id], static_cast<std::uint32_t>(id));
    if (has_last_ && key > last_) return;
    keys_.push_back(key);
    if (keys_.size() < 2 * count_) return;
    keep_best(keys_, count_);
    last_ = keys_[count_ - 1];
    below_ = std::nextafter(logits_[static_cast<std::uint32_t>(last_)], kNone);
    has_last_ = true;
  }

  /// All ids.
  void take_all() {
    std::size_t first = 0;
    while (first < logits_.size() && !has_last_) take(first++);
    for_each_above(logits_.subspan(first), below_, isa_, [&](std::size_t place) { take(first + place); });
  }

  void finish() { keep_best(keys_, count_); }

 private:
  std::span<const float> logits_;
  std::size_t count_;
  Isa isa_;
  std::vector<std::uint64_t>& keys_;
  std::uint64_t last_ = 0;  // of a full set
  float below_ = 0.0f;      // its logit, and all that may be kept, is above it
  bool has_last_ = false;
};

/// A logit that at least `count` maxima reach, and hardly more if `most` are wanted, so that there are as many candidates; kNone: there is
/// none.
float bound_of(std::span<const float> maxima, std::size_t count, std::size_t most, Isa isa) {
  constexpr int kMostSteps = 32;
  const std::size_t enough = count + std::max(count / 8, std::min(count / 2, (most - count) / 4));
  if (maxima.size() < count) return kNone;
  float high = maximum(maxima, isa), low = high, distance = 4.0f;
  if (!std::isfinite(high)) return kNone;
  for (; num_from(maxima, low, isa) < count; distance *= 2.0f) {
    high = low;
    low = high - distance;
    if (!std::isfinite(low)) return kNone;
  }
  for (int step = 0; step < kMostSteps; ++step) {
    const float middle = low + (high - low) * 0.5f;
    const std::size_t reached = num_from(maxima, middle, isa);
    (reached < count ? high : low) = middle;
    if (reached >= count && reached <= enough) break;
  }
  return low;
}

}  // namespace

void first_candidates(std::span<const float> logits, std::size_t count, std::size_t most, std::span<const float> maxima, Isa isa,
                      std::vector<std::uint64_t>& keys) {
  keys.clear();
  if (count == 0) return;
  const float bound = bound_of(maxima, count, most, isa);
  if (bound == kNone) {  // too few groups, or ids that are not masked
    BestKeys best(logits, count, isa, keys);
    best.take_all();
    return best.finish();
  }
  const float below = std::nextafter(bound, kNone);
  // The logits may be far from the core. Asked for one by one they would be waited for one by one: which come next depends on them.
  std::size_t used = append_above(maxima, 0, below, isa, keys, 0);
  const std::size_t num_groups = used;
  for (std::size_t i = 0; i < num_groups; ++i) __builtin_prefetch(&logits[static_cast<std::uint32_t>(keys[i]) * kSketchGroup]);
  for (std::size_t i = 0; i < num_groups; ++i) {
    const std::size_t first = static_cast<std::uint32_t>(keys[i]) * kSketchGroup;
    used = append_above(logits.subspan(first, std::min(kSketchGroup, logits.size() - first)), first, below, isa, keys, used);
  }
  keys.resize(used);
  keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(num_groups));
  keep_best(keys, most);
}

}  // namespace lockstep::device
