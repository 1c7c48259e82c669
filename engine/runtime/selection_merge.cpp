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

std::uint32_t SelectionMerge::flags(std::size_t rank, std::size_t row) const {
  return read_at<std::uint32_t>(of_rank_[rank], layouts_[rank].flags_offset() + row * sizeof(std::uint32_t));
}

/// Fills `known`, in no order, with what is known for sure: nothing that a rank has kept for itself can come before one of these.
void SelectionMerge::find_known(std::size_t row, bool best, std::span<const LogitChange> changes, Candidates& known) const {
  known.clear();
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    if (shares_[rank].size() == 0) continue;
    const SelectionLayout::Row& place = layouts_[rank].rows()[row];
    const std::size_t first = best ? place.best : place.candidates;
    const std::size_t count = best ? place.num_best : place.num_candidates - (flags(rank, row) >> device::kLeftOutShift);
    std::uint64_t last_of_rank = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto found =
          read_at<device::Candidate>(of_rank_[rank], layouts_[rank].candidates_offset() + (first + i) * sizeof(device::Candidate));
      const auto id = static_cast<std::uint32_t>(found.id + shares_[rank].begin);
      const float logit = changes.empty() ? found.logit : changed(found.logit, id, changes);
      known.emplace_back(logit, found.logit, id);
      last_of_rank = std::max(last_of_rank, known.back().key);
    }
    if (count < shares_[rank].size()) last = std::min(last, last_of_rank);
  }
  if (shares_.size() > 1) std::erase_if(known, [last](const auto& each) { return each.key > last; });
}

void SelectionMerge::begin(std::span<const std::byte> gathered, std::span<const SelectionRow> rows, std::span<const LogitChange> changes,
                           std::span<const device::Top> tops) {
  std::size_t offset = 0;
  of_rank_.clear();
  for (const std::size_t bytes : bytes_per_rank(rows)) {
    if (bytes > gathered.size() - offset) throw std::invalid_argument("selection: a rank sent too little");
    of_rank_.push_back(gathered.subspan(offset, bytes));
    offset += bytes;
  }
  rows_ = rows;
  changes_ = changes;
  tops_ = tops;
  first_changes_.clear();
  std::size_t first = 0;
  for (const SelectionRow& row : rows) {
    first_changes_.push_back(first);
    first += row.num_changes;
  }
}

const SelectedRow& SelectionMerge::row(std::size_t index) {
  const SelectionRow& wanted = rows_[index];
  const std::span<const LogitChange> own = changes_.subspan(first_changes_[index], wanted.num_changes);
  find_known(index, false, own, candidates_);
  best_.clear();
  if (wanted.num_best > 0) find_known(index, true, {}, best_);
  row_ = {};
  row_.vocab_size = shares_.back().end;
  row_.num_masked = wanted.num_masked;
  row_.candidates = FirstCandidates(candidates_);
  row_.best = FirstCandidates(best_);
  row_.maximum = tops_[wanted.row].logit;
  if (wanted.scale != 0.0) row_.mass = sum(index, &SelectionLayout::Row::sums);
  if (wanted.log_sum != device::LogSum::kNone) row_.log_mass = sum(index, &SelectionLayout::Row::log_sums);
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    if (shares_[rank].size() == 0) continue;
    row_.finite = row_.finite && (flags(rank, index) & device::kIsFinite) != 0;
    if ((flags(rank, index) & device::kIsSketched) != 0) row_.mass_error = device::kMassError;
  }
  return row_;
}

}  // namespace lockstep::engine
