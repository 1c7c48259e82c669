#include "engine/sampling/selected_row.h"

#include <algorithm>

namespace lockstep::engine {
namespace {

constexpr std::uint32_t kRoomForTies = 8;
constexpr float kLift = 0x1p100f;  // above the logits of any model; where one is higher, the row is fetched

}  // namespace

void FirstCandidates::order_up_to(std::size_t count) const {
  constexpr std::size_t kFirst = 16, kGrowth = 4;
  const auto place = [this](std::size_t index) { return candidates_.begin() + static_cast<std::ptrdiff_t>(index); };
  const auto before = [](const Candidate& a, const Candidate& b) { return a.key < b.key; };
  const std::size_t end = std::min(std::max(count, std::max(kFirst, kGrowth * num_ordered_)), candidates_.size());
  if (end < candidates_.size()) std::nth_element(place(num_ordered_), place(end), candidates_.end(), before);
  std::sort(place(num_ordered_), place(end), before);
  num_ordered_ = end;
}

bool can_select(const SamplingParams& params) {
  if (params.greedy()) return true;
  if (params.top_k > 0) return static_cast<std::uint32_t>(params.top_k) + kRoomForTies <= device::kMaxCandidates;
  return params.typical_p >= 1.0f || params.top_p < 1.0f || params.min_p > 0.0f;  // else typical_p looks at every token
}

device::SelectionRow selection_row(const SamplingParams& params, std::span<const device::LogitChange> changes, std::uint32_t candidates) {
  device::SelectionRow row;
  row.num_changes = static_cast<std::uint32_t>(changes.size());
  row.num_masked =
      static_cast<std::uint32_t>(std::count_if(changes.begin(), changes.end(), [](const auto& change) { return change.masks(); }));
  row.num_candidates = 1;
  if (!params.greedy()) {
    const bool has_top_k = params.top_k > 0;
    row.num_candidates = candidates;
    if (has_top_k && candidates <= kFirstCandidates) row.num_candidates = static_cast<std::uint32_t>(params.top_k) + kRoomForTies;
    row.scale = 1.0 / static_cast<double>(params.temperature);
    // Where top_k leaves all that is not masked, the candidates are all of it.
    if (has_top_k || (params.top_p >= 1.0f && params.min_p > 0.0f)) row.scale = 0.0;
    if (row.scale != 0.0 && params.top_p < 1.0f && params.logprobs < 0) row.covered = static_cast<double>(params.top_p);
  }
  if (params.logprobs >= 0) {
    row.log_sum = changes.empty() && row.scale == 1.0 ? device::LogSum::kIsMass : device::LogSum::kOwn;
    std::uint32_t& count = changes.empty() ? row.num_candidates : row.num_best;
    count = std::max(count, static_cast<std::uint32_t>(params.logprobs));
  }
  return row;
}

device::SelectionRow scored_row(std::uint32_t num_best) {
  device::SelectionRow row;
  row.num_changes = 1;
  row.num_candidates = 1;
  row.num_best = num_best;
  row.log_sum = device::LogSum::kOwn;
  return row;
}

device::LogitChange lifted(std::uint32_t token) { return {.id = token, .bias = kLift}; }

}  // namespace lockstep::engine
