#include "engine/runtime/rank_selection.h"

#include <numeric>
#include <stdexcept>
#include <string>

namespace lockstep::engine {
namespace {

comm::TreeSum tree_of_ranks(std::size_t num_ranks) {
  std::vector<parallel::Range> shares;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) shares.push_back({rank, rank + 1});
  return parallel::ReductionTree(num_ranks).tree_sum(shares);
}

}  // namespace

RankSelection::RankSelection(std::vector<parallel::Range> shares, std::size_t max_rows, device::Device& device,
                             comm::Communicator& communicator)
    : shares_(std::move(shares)),
      device_(device),
      communicator_(communicator),
      merge_(shares_),
      sum_of_ranks_(tree_of_ranks(shares_.size())),
      peaks_(device.allocate(device::kPeakSize * shares_.size() * max_rows * sizeof(float))) {
  device_.prepare_selection(max_rows, runs_of(shares_[rank()]));
}

RankSelection::~RankSelection() = default;

/// The changes of this rank's ids, counted from its first one.
void RankSelection::take_own(std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes) {
  const parallel::Range mine = shares_[rank()];
  own_rows_.assign(rows.begin(), rows.end());
  own_changes_.clear();
  for (device::SelectionRow& row : own_rows_) {
    const std::span<const device::LogitChange> of_row = changes.first(row.num_changes);
    changes = changes.subspan(of_row.size());
    row.num_changes = 0;
    for (const device::LogitChange& change : of_row) {
      if (change.id >= shares_.back().end)
        throw std::runtime_error("runner: the change of logit " + std::to_string(change.id) + " is outside the vocabulary");
      if (change.id < mine.begin || change.id >= mine.end) continue;
      own_changes_.push_back(change);
      own_changes_.back().id -= static_cast<std::uint32_t>(mine.begin);
      ++row.num_changes;
    }
  }
}

void RankSelection::select(const device::Matrix& logits, std::span<const device::SelectionRow> rows,
                           std::span<const device::LogitChange> changes) {
  take_own(rows, changes);
  const device::Selection selection{own_rows_, own_changes_};
  auto* peaks = static_cast<float*>(peaks_->data());
  device_.begin_selection(logits, selection, rank(), shares_.size(), peaks);
  // Every rank has +0 at the places of the others: the sum is what each has at its own, and no rank waits for another one's host.
  if (shares_.size() > 1) communicator_.all_reduce(sum_of_ranks_, peaks, device::kPeakSize * shares_.size() * rows.size());
  device_.finish_selection(logits, selection, shares_.size(), peaks);
}

SelectedRows* RankSelection::gather(std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes,
                                    std::span<const device::Top> tops) {
  const std::span<const std::size_t> bytes = merge_.bytes_per_rank(rows);
  std::span<const std::byte> found;
  if (bytes[rank()] > 0) found = device_.read_selection().first(bytes[rank()]);
  const bool is_root = rank() == 0;
  if (shares_.size() > 1) {
    all_found_.resize(is_root ? std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) : 0);
    communicator_.gather(found, all_found_, bytes, 0);
    found = all_found_;
  }
  if (!is_root) return nullptr;
  merge_.begin(found, rows, changes, tops);
  return &merge_;
}

}  // namespace lockstep::engine
