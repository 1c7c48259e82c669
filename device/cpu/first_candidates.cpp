#include "device/cpu/first_candidates.h"

#include <algorithm>

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

}  // namespace

/// Keeps twice as many as are wanted, and drops the worse half whenever they are full: nearly every id fails the first comparison.
void first_candidates(std::span<const float> logits, std::size_t count, Isa isa, std::vector<std::uint64_t>& keys) {
  keys.clear();
  if (count == 0) return;
  keys.reserve(2 * count);
  const auto keep_best = [&] {
    std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count) - 1, keys.end());
    keys.resize(count);
  };
  float worst_kept = 0.0f;  // of a full set; ids come in ascending order, so an equal logit can not displace it
  bool has_full_set = false;
  for (std::size_t first = 0; first < logits.size(); first += kStride) {
    if (has_full_set) first = skip(logits, first, worst_kept, isa);
    const std::size_t end = std::min(first + kStride, logits.size());
    for (std::size_t id = first; id < end; ++id) {
      if (has_full_set && !(logits[id] > worst_kept)) continue;
      keys.push_back(candidate_key(logits[id], static_cast<std::uint32_t>(id)));
      if (keys.size() < 2 * count) continue;
      keep_best();
      worst_kept = logits[static_cast<std::uint32_t>(keys[count - 1])];
      has_full_set = true;
    }
  }
  if (keys.size() > count) keep_best();
}

}  // namespace lockstep::device
