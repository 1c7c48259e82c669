#include "device/cpu/first_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/cpu/row_sketch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::size_t kStride = 32;

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
    const std::uint32_t above =
        above8(at, bounds) | above8(at + 8, bounds) << 8 | above8(at + 16, bounds) << 16 | above8(at + 24, bounds) << 24;
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

/// Keeps twice as many keys as are wanted, and drops the worse half whenever they are full: nearly every id fails the first comparison.
class BestKeys {
 public:
  BestKeys(std::span<const float> logits, std::size_t count, Isa isa, std::vector<std::uint64_t>& keys)
      : logits_(logits), count_(count), isa_(isa), keys_(keys) {
    keys_.clear();
    keys_.reserve(2 * count);
  }

  /// The first `count` are known not to come behind this one.
  void set_last(float logit, std::uint32_t id) {
    last_ = candidate_key(logit, id);
    below_ = std::nextafter(logit, -std::numeric_limits<float>::infinity());
    has_last_ = true;
  }
  /// Whether one with this logit may still be among the first.
  bool may_take(float logit) const { return !has_last_ || logit > below_; }

  void take(std::size_t first, std::size_t end) {
    for (; first < end && !has_last_; ++first) take(first);
    while (first + kStride <= end) {
      const Stride stride = next(logits_.first(end), first, below_, isa_);
      for (std::uint32_t above = stride.above; above != 0; above &= above - 1) take(stride.first + std::countr_zero(above));
      first = stride.above == 0 ? stride.first : stride.first + kStride;
    }
    for (; first < end; ++first) take(first);
  }

  void finish() {
    if (keys_.size() > count_) keep_best();
  }

 private:
  void take(std::size_t id) {
    if (has_last_ && !(logits_[id] > below_)) return;
    const std::uint64_t key = candidate_key(logits_[id], static_cast<std::uint32_t>(id));
    if (has_last_ && key > last_) return;
    keys_.push_back(key);
    if (keys_.size() < 2 * count_) return;
    keep_best();
    set_last(logits_[static_cast<std::uint32_t>(keys_[count_ - 1])], static_cast<std::uint32_t>(keys_[count_ - 1]));
  }

  void keep_best() {
    std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(count_) - 1, keys_.end());
    keys_.resize(count_);
  }

  std::span<const float> logits_;
  std::size_t count_;
  Isa isa_;
  std::vector<std::uint64_t>& keys_;
  std::uint64_t last_ = 0;
  float below_ = 0.0f;
  bool has_last_ = false;
};

}  // namespace

/// The count-th largest maximum is a bound: as many logits at least are not below it. Only chunks that reach it are looked at, the best
/// first, which soon give a better one.
void first_candidates(std::span<const float> logits, std::size_t count, std::span<const float> maxima, Isa isa,
                      std::vector<std::uint64_t>& chunks, std::vector<std::uint64_t>& keys) {
  keys.clear();
  if (count == 0) return;
  BestKeys best(logits, count, isa, keys);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float bound = kNone;
  if (maxima.size() > count) {
    chunks.clear();
    for (std::size_t i = 0; i < maxima.size(); ++i) chunks.push_back(candidate_key(maxima[i], static_cast<std::uint32_t>(i)));
    std::nth_element(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(count) - 1, chunks.end());
    bound = maxima[static_cast<std::uint32_t>(chunks[count - 1])];
  }
  if (!(bound > kNone)) {  // too few chunks, or ids that are not masked
    best.take(0, logits.size());
    return best.finish();
  }
  best.set_last(bound, std::numeric_limits<std::uint32_t>::max());
  std::sort(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t i = 0; i < chunks.size(); ++i) {  // behind the first `count` only those that equal the bound
    const std::size_t chunk = static_cast<std::uint32_t>(chunks[i]);
    if (!best.may_take(maxima[chunk])) {
      if (i < count) break;
      continue;
    }
    best.take(chunk * kSketchChunk, std::min((chunk + 1) * kSketchChunk, logits.size()));
  }
  best.finish();
}

}  // namespace lockstep::device
