#include "device/cpu/first_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/row_sketch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::size_t kStride = 32;

/// The first multiple of kStride from `first` on where one of the next kStride values is above `bound`, or where fewer are left.
std::size_t skip_portable(std::span<const float> values, std::size_t first, float bound) {
  for (; first + kStride <= values.size(); first += kStride) {
    bool above = false;
    for (std::size_t i = 0; i < kStride; ++i) above |= values[first + i] > bound;
    if (above) break;
  }
  return first;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::size_t skip_avx2(std::span<const float> values, std::size_t first, float bound) {
  const __m256 bounds = _mm256_set1_ps(bound);
  for (; first + kStride <= values.size(); first += kStride) {
    const float* at = values.data() + first;
    const __m256 low =
        _mm256_or_ps(_mm256_cmp_ps(_mm256_loadu_ps(at), bounds, _CMP_GT_OQ), _mm256_cmp_ps(_mm256_loadu_ps(at + 8), bounds, _CMP_GT_OQ));
    const __m256 high = _mm256_or_ps(_mm256_cmp_ps(_mm256_loadu_ps(at + 16), bounds, _CMP_GT_OQ),
                                     _mm256_cmp_ps(_mm256_loadu_ps(at + 24), bounds, _CMP_GT_OQ));
    if (_mm256_movemask_ps(_mm256_or_ps(low, high)) != 0) break;
  }
  return first;
}
#endif

std::size_t skip(std::span<const float> values, std::size_t first, float bound, Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx2) return skip_avx2(values, first, bound);
#endif
  static_cast<void>(isa);
  return skip_portable(values, first, bound);
}

/// Keeps twice as many keys as are wanted, and drops the worse half whenever they are full: nearly every id fails the first comparison.
class BestKeys {
 public:
  BestKeys(std::span<const float> logits, std::size_t count, Isa isa, std::vector<std::uint64_t>& keys)
      : logits_(logits), count_(count), isa_(isa), keys_(keys) {
    keys_.clear();
    keys_.reserve(2 * count);
  }

  /// Nothing that is not above `bound` is among the first `count`.
  void skip_up_to(float bound) {
    bound_ = bound;
    has_bound_ = true;
  }

  /// Ids [first, end), which come in ascending order: an equal logit can not displace one that is kept.
  void take(std::size_t first, std::size_t end) {
    for (; first < end; first += kStride) {
      if (has_bound_) first = skip(logits_.first(end), first, bound_, isa_);
      const std::size_t last = std::min(first + kStride, end);
      for (std::size_t id = first; id < last; ++id) {
        if (has_bound_ && !(logits_[id] > bound_)) continue;
        keys_.push_back(candidate_key(logits_[id], static_cast<std::uint32_t>(id)));
        if (keys_.size() < 2 * count_) continue;
        keep_best();
        skip_up_to(logits_[static_cast<std::uint32_t>(keys_[count_ - 1])]);
      }
    }
  }

  void finish() {
    if (keys_.size() > count_) keep_best();
  }

 private:
  void keep_best() {
    std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(count_) - 1, keys_.end());
    keys_.resize(count_);
  }

  std::span<const float> logits_;
  std::size_t count_;
  Isa isa_;
  std::vector<std::uint64_t>& keys_;
  float bound_ = 0.0f;
  bool has_bound_ = false;
};

/// The count-th largest maximum: as many logits at least are not below it.
float bound_of(std::span<const float> maxima, std::size_t count, std::vector<std::uint64_t>& keys) {
  keys.clear();
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) keys.push_back(candidate_key(maxima[chunk], static_cast<std::uint32_t>(chunk)));
  const auto nth = keys.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(keys.begin(), nth, keys.end());
  return maxima[static_cast<std::uint32_t>(*nth)];
}

}  // namespace

void first_candidates(std::span<const float> logits, std::size_t count, std::span<const float> maxima, Isa isa,
                      std::vector<std::uint64_t>& keys) {
  keys.clear();
  if (count == 0) return;
  const float bound = maxima.size() > count ? bound_of(maxima, count, keys) : -std::numeric_limits<float>::infinity();
  BestKeys best(logits, count, isa, keys);
  if (!(bound > -std::numeric_limits<float>::infinity())) {  // too few chunks, or ids that are not masked
    best.take(0, logits.size());
    return best.finish();
  }
  best.skip_up_to(std::nextafter(bound, -std::numeric_limits<float>::infinity()));
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (maxima[chunk] < bound) continue;
    best.take(chunk * kSketchChunk, std::min((chunk + 1) * kSketchChunk, logits.size()));
  }
  best.finish();
}

}  // namespace lockstep::device
