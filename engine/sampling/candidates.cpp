#include "engine/sampling/candidates.h"

#include <algorithm>

#include "device/cpu/first_candidates.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kFirstBatch = 64;
constexpr std::size_t kGrowth = 8;
constexpr std::size_t kFewOf = 2;  // up to this part of all they are picked out; beyond, all are put in order in place

}  // namespace

void CandidateOrder::reset(std::span<const float> logits) {
  logits_ = logits;
  keys_.clear();
  num_sorted_ = 0;
  holds_all_ = false;
}

void CandidateOrder::sort_up_to(std::size_t count) {
  const std::size_t end = std::min(std::max(count, num_sorted_ == 0 ? kFirstBatch : kGrowth * num_sorted_), logits_.size());
  if (!holds_all_ && end <= logits_.size() / kFewOf) {
    device::first_candidates(logits_, end, end, {}, isa_, keys_);
    std::sort(keys_.begin(), keys_.end());
    num_sorted_ = keys_.size();
    return;
  }
  if (!holds_all_) {
    keys_.resize(logits_.size());
    for (std::size_t id = 0; id < logits_.size(); ++id) keys_[id] = device::candidate_key(logits_[id], static_cast<std::uint32_t>(id));
    holds_all_ = true;
    num_sorted_ = 0;
  }
  const auto place = [this](std::size_t index) { return keys_.begin() + static_cast<std::ptrdiff_t>(index); };
  if (end < keys_.size()) std::nth_element(place(num_sorted_), place(end), keys_.end());
  std::sort(place(num_sorted_), place(end));
  num_sorted_ = end;
}

}  // namespace lockstep::engine
