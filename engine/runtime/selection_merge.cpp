#include "engine/runtime/selection_merge.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "device/cpu/row_sketch.h"
#include "device/cpu/vocabulary_sum.h"

namespace lockstep::engine {

using device::LogitChange;
using device::SelectionLayout;
using device::SelectionRow;

namespace {

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

float changed(float logit, std::uint32_t id, std::span<const LogitChange> changes) {
  const auto found =
      std::lower_bound(changes.begin(), changes.end(), id, [](const LogitChange& change, std::uint32_t i) { return change.id < i; });
  return found != changes.end() && found->id == id ? device::changed(logit, *found) : logit;
}

}  // namespace

std::vector<device::SegmentRun> runs_of(parallel::Range vocabulary) {
  const auto segment = [](std::size_t id) { return (id + device::kVocabularySegment - 1) / device::kVocabularySegment; };
  return device::segment_runs(segment(vocabulary.begin), segment(vocabulary.end));
}

SelectionMerge::SelectionMerge(std::vector<parallel::Range> shares) : shares_(std::move(shares)), layouts_(shares_.size()) {
  for (const parallel::Range share : shares_) runs_.push_back(runs_of(share));
}

std::span<const std::size_t> SelectionMerge::bytes_per_rank(std::span<const SelectionRow> rows) {
  bytes_.clear();
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    layouts_[rank].reset(rows, shares_[rank].size(), runs_[rank].size());
    bytes_.push_back(shares_[rank].size() == 0 ? 0 : layouts_[rank].size_bytes());
  }
  return bytes_;
}

double SelectionMerge::sum(std::size_t row, std::uint32_t SelectionLayout::Row::*first) const {
  device::TreeAdder adder;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    for (std::size_t run = 0; run < runs_[rank].size(); ++run) {
      const std::size_t index = layouts_[rank].rows()[row].*first + run;
      adder.push(read_at<double>(of_rank_[rank], index * sizeof(double)), runs_[rank][run].size);
    }
  }
  return adder.finish();
}

/// Fills ranked_, in order, with what is known for sure: nothing that a rank has kept for itself can come before one of these.
void SelectionMerge::rank_candidates(std::size_t row, bool best, std::span<const LogitChange> changes) {
  ranked_.clear();
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    if (shares_[rank].size() == 0) continue;
    const SelectionLayout::Row& place = layouts_[rank].rows()[row];
    const std::size_t first = best ? place.best : place.candidates;
    const std::size_t count = best ? place.num_best : place.num_candidates;
    std::uint64_t last_of_rank = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto found =
          read_at<device::Candidate>(of_rank_[rank], layouts_[rank].candidates_offset() + (first + i) * sizeof(device::Candidate));
      const auto id = static_cast<std::uint32_t>(found.id + shares_[rank].begin);
      const std::uint64_t key = device::candidate_key(changes.empty() ? found.logit : changed(found.logit, id, changes), id);
      last_of_rank = std::max(last_of_rank, key);
      ranked_.emplace_back(key, found.logit);
    }
    if (count < shares_[rank].size()) last = std::min(last, last_of_rank);
  }
  std::erase_if(ranked_, [last](const Ranked& ranked) { return ranked.first > last; });
  std::sort(ranked_.begin(), ranked_.end());
}

/// Appends ranked_ to candidates_: where they begin and end there.
std::pair<std::size_t, std::size_t> SelectionMerge::keep_ranked(std::span<const LogitChange> changes) {
  const std::size_t begin = candidates_.size();
  for (const auto& [key, logit] : ranked_) {
    const auto id = static_cast<std::uint32_t>(key);
    candidates_.push_back({changes.empty() ? logit : changed(logit, id, changes), logit, id});
  }
  return {begin, candidates_.size()};
}

void SelectionMerge::merge(std::span<const std::byte> gathered, std::span<const SelectionRow> rows, std::span<const LogitChange> changes,
                           std::span<const device::Top> tops, std::vector<SelectedRow>& merged) {
  std::size_t offset = 0;
  of_rank_.clear();
  for (const std::size_t bytes : bytes_per_rank(rows)) {
    if (bytes > gathered.size() - offset) throw std::invalid_argument("selection: a rank sent too little");
    of_rank_.push_back(gathered.subspan(offset, bytes));
    offset += bytes;
  }
  candidates_.clear();
  candidates_of_row_.clear();
  best_of_row_.clear();
  merged.assign(rows.size(), {});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::span<const LogitChange> own = changes.first(rows[row].num_changes);
    changes = changes.subspan(own.size());
    rank_candidates(row, false, own);
    candidates_of_row_.push_back(keep_ranked(own));
    if (rows[row].num_best > 0) {
      rank_candidates(row, true, {});
      best_of_row_.push_back(keep_ranked({}));
    } else {
      best_of_row_.push_back(own.empty() ? candidates_of_row_.back() : std::pair<std::size_t, std::size_t>());
    }
    SelectedRow& to = merged[row];
    to.vocab_size = shares_.back().end;
    to.num_masked = rows[row].num_masked;
    to.maximum = tops[rows[row].row].logit;
    if (rows[row].scale != 0.0) to.mass = sum(row, &SelectionLayout::Row::sums);
    if (rows[row].log_sum != device::LogSum::kNone) to.log_mass = sum(row, &SelectionLayout::Row::log_sums);
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      if (shares_[rank].size() == 0) continue;
      const auto flags = read_at<std::uint32_t>(of_rank_[rank], layouts_[rank].flags_offset() + row * sizeof(std::uint32_t));
      to.finite = to.finite && (flags & device::kIsFinite) != 0;
      if ((flags & device::kIsSketched) != 0) to.mass_error = device::kMassError;
    }
  }
  const std::span<const SelectedRow::Candidate> all(candidates_);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    merged[row].candidates = all.subspan(candidates_of_row_[row].first, candidates_of_row_[row].second - candidates_of_row_[row].first);
    merged[row].best = all.subspan(best_of_row_[row].first, best_of_row_[row].second - best_of_row_[row].first);
  }
}

}  // namespace lockstep::engine
