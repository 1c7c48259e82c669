#include "engine/sampling/candidates.h"

#include <algorithm>

#include "device/cpu/first_candidates.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kFirstBatch = 64;
constexpr std::size_t kGrowth = 8;

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
    for (std::size_t id = 0; id < logits_.size(); ++id) keys_[id] = device::candidate_key(logits_[id], static_cast<std::uint32_t>(id));
    holds_all_ = true;
    num_sorted_ = 0;
  }
  const std::size_t end = std::min(std::max(count, kGrowth * std::max(num_sorted_, kFirstBatch)), keys_.size());
  const auto place = [this](std::size_t index) { return keys_.begin() + static_cast<std::ptrdiff_t>(index); };
  if (end < keys_.size()) std::nth_element(place(num_sorted_), place(end), keys_.end());
  std::sort(place(num_sorted_), place(end));
  num_sorted_ = end;
}

void CandidateOrder::select_first(std::size_t count) {
  device::first_candidates(logits_, count, {}, isa_, keys_);
  std::sort(keys_.begin(), keys_.end());
  num_sorted_ = keys_.size();
}

}  // namespace lockstep::engine
