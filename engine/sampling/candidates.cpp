#include "engine/sampling/candidates.h"

#include <algorithm>
#include <bit>

namespace lockstep::engine {
namespace {

constexpr std::size_t kFirstBatch = 64;
constexpr std::size_t kGrowth = 8;

/// Ascending keys are descending logits, then ascending ids.
std::uint64_t key_of(float logit, std::uint32_t id) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 becomes 0
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return std::uint64_t{~ascending} << 32 | id;
}

}  // namespace

void CandidateOrder::reset(std::span<const float> logits) {
  logits_ = logits;
  keys_.clear();
  num_sorted_ = 0;
  holds_all_ = false;
}

void CandidateOrder::sort_up_to(std::size_t count) {
  if (num_sorted_ == 0 && count <= kFirstBatch && logits_.size() > 2 * kFirstBatch) {
    select_first(kFirstBatch);
    return;
  }
  if (!holds_all_) {
    keys_.resize(logits_.size());
    for (std::size_t id = 0; id < logits_.size(); ++id) keys_[id] = key_of(logits_[id], static_cast<std::uint32_t>(id));
    holds_all_ = true;
    num_sorted_ = 0;
  }
  const std::size_t end = std::min(std::max(count, kGrowth * std::max(num_sorted_, kFirstBatch)), keys_.size());
  const auto place = [this](std::size_t index) { return keys_.begin() + static_cast<std::ptrdiff_t>(index); };
  if (end < keys_.size()) std::nth_element(place(num_sorted_), place(end), keys_.end());
  std::sort(place(num_sorted_), place(end));
  num_sorted_ = end;
}

/// One pass that keeps twice as many as are wanted, and drops the worse half whenever they are full: nearly every id fails the first
/// comparison.
void CandidateOrder::select_first(std::size_t count) {
  keys_.clear();
  keys_.reserve(2 * count);
  const auto wanted_end = [&] { return keys_.begin() + static_cast<std::ptrdiff_t>(count); };
  const auto keep_best = [&] {
    std::nth_element(keys_.begin(), wanted_end() - 1, keys_.end());
    keys_.erase(wanted_end(), keys_.end());
  };
  float worst_kept = 0.0f;  // of a full set; ids come in ascending order, so an equal logit can not displace it
  bool has_full_set = false;
  for (std::size_t id = 0; id < logits_.size(); ++id) {
    if (has_full_set && !(logits_[id] > worst_kept)) continue;
    keys_.push_back(key_of(logits_[id], static_cast<std::uint32_t>(id)));
    if (keys_.size() < 2 * count) continue;
    keep_best();
    worst_kept = logits_[static_cast<std::uint32_t>(keys_[count - 1])];
    has_full_set = true;
  }
  if (keys_.size() > count) keep_best();
  std::sort(keys_.begin(), keys_.end());
  num_sorted_ = keys_.size();
}

}  // namespace lockstep::engine
