#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/selection.h"
#include "engine/sampling/selected_row.h"
#include "parallel/reduction_tree.h"

namespace lockstep::engine {

/// The tree nodes that a rank adds up of its part of the vocabulary.
std::vector<device::SegmentRun> runs_of(parallel::Range vocabulary);

/// Puts together what the ranks found of the rows of a step. Keeps its memory from step to step.
class SelectionMerge {
 public:
  /// @param shares  [ranks]: ids of each, ascending from 0
  explicit SelectionMerge(std::vector<parallel::Range> shares);

  /// Bytes of each rank, as Communicator::gather wants them. The same on every rank.
  std::span<const std::size_t> bytes_per_rank(std::span<const device::SelectionRow> rows);

  /// @param gathered  of all ranks, as bytes_per_rank() of the same rows says
  /// @param changes   of all rows, ids of the whole vocabulary
  /// @param tops      of all logit rows of the step
  /// @param merged    [rows]; spans into memory of this object, valid until the next call
  void merge(std::span<const std::byte> gathered, std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes,
             std::span<const device::Top> tops, std::vector<SelectedRow>& merged);

 private:
  using Ranked = std::pair<std::uint64_t, float>;  // key of the order, logit of the row as it is
  double sum(std::size_t row, std::uint32_t device::SelectionLayout::Row::*first) const;
  void rank_candidates(std::size_t row, bool best, std::span<const device::LogitChange> changes);
  std::pair<std::size_t, std::size_t> keep_ranked(std::span<const device::LogitChange> changes);

  std::vector<parallel::Range> shares_;
  std::vector<std::vector<device::SegmentRun>> runs_;  // [ranks]
  std::vector<device::SelectionLayout> layouts_;       // [ranks]
  std::vector<std::size_t> bytes_;                     // [ranks]
  std::vector<std::span<const std::byte>> of_rank_;    // [ranks]
  std::vector<Ranked> ranked_;                         // of the row at hand
  std::vector<SelectedRow::Candidate> candidates_;     // of all rows
  std::vector<std::pair<std::size_t, std::size_t>> candidates_of_row_, best_of_row_;
};

}  // namespace lockstep::engine
