#include "engine/sampling/beam_search.h"

#include <algorithm>

#include "device/portable_math.h"

namespace lockstep::engine {

std::uint32_t beam_candidates(std::uint32_t num_beams, std::size_t num_end_ids) {
  return num_beams * static_cast<std::uint32_t>(std::max<std::size_t>(2, 1 + num_end_ids));
}

BeamSearch::BeamSearch(const BeamParams& params, std::uint32_t max_tokens, std::vector<std::int32_t> end_ids)
    : params_(params), max_tokens_(max_tokens), end_ids_(std::move(end_ids)), beams_(1), parents_(1) {
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
  num_candidates_ = beam_candidates(params_.num_beams, end_ids_.size());
}

float BeamSearch::score_of(float sum, std::size_t length) const {
  const double divisor = device::portable::pow(static_cast<double>(length), static_cast<double>(params_.length_penalty));
  return sum / static_cast<float>(divisor);
}

void BeamSearch::rank(std::span<const Row> rows) {
  ranked_.clear();
  for (std::size_t beam = 0; beam < rows.size(); ++beam) {
    for (const auto& [token, logprob] : rows[beam]) ranked_.push_back({beam, token, beams_[beam].sum + logprob});
  }
  const std::size_t count = std::min<std::size_t>(num_candidates_, ranked_.size());
  const auto before = [](const Continuation& a, const Continuation& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
  };
  std::partial_sort(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(count), ranked_.end(), before);
  ranked_.resize(count);
}

/// Of the first continuations those that end.
void BeamSearch::take_finished(std::size_t length) {
  for (std::size_t i = 0; i < std::min<std::size_t>(params_.num_beams, ranked_.size()); ++i) {
    const Continuation& next = ranked_[i];
    const bool at_end_token = std::binary_search(end_ids_.begin(), end_ids_.end(), next.token);
    if (!at_end_token && length < max_tokens_) continue;
    Finished finished{beams_[next.parent].tokens, score_of(next.sum, length), at_end_token};
    finished.tokens.push_back(next.token);
    finished_.push_back(std::move(finished));
  }
  std::stable_sort(finished_.begin(), finished_.end(), [](const Finished& a, const Finished& b) { return a.score > b.score; });
  if (finished_.size() > params_.num_beams) finished_.resize(params_.num_beams);
}

bool BeamSearch::is_over(std::size_t length) const {
  if (beams_.empty() || length >= max_tokens_) return true;
  if (finished_.size() < params_.num_beams) return false;
  if (params_.early_stopping == EarlyStopping::kYes) return true;
  const bool hopes = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0.0f;
  return score_of(beams_.front().sum, hopes ? max_tokens_ : length) <= finished_.back().score;
}

bool BeamSearch::advance(std::span<const Row> rows) {
  rank(rows);
  const std::size_t length = beams_.front().tokens.size() + 1;
  take_finished(length);
  std::vector<Beam> next_beams;
  parents_.clear();
  for (const Continuation& next : ranked_) {
    if (next_beams.size() == params_.num_beams) break;
    if (std::binary_search(end_ids_.begin(), end_ids_.end(), next.token)) continue;
    next_beams.push_back({beams_[next.parent].tokens, next.sum});
    next_beams.back().tokens.push_back(next.token);
    parents_.push_back(next.parent);
  }
  beams_ = std::move(next_beams);
  return !is_over(length);
}

}  // namespace lockstep::engine
