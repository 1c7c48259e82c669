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

/// Puts together what the ranks found of the rows of a step, row by row. Keeps its memory from step to step.
class SelectionMerge final : public SelectedRows {
 public:
  /// @param shares  [ranks]: ids of each, ascending from 0
  explicit SelectionMerge(std::vector<parallel::Range> shares);

  /// Bytes of each rank, as Communicator::gather wants them. The same on every rank.
  std::span<const std::size_t> bytes_per_rank(std::span<const device::SelectionRow> rows);

  /// The arguments have to stay as they are as long as rows are read.
  /// @param gathered  of all ranks, as bytes_per_rank() of the same rows says
  /// @param changes   of all rows, ids of the whole vocabulary
  /// @param tops      of all logit rows of the step
  void begin(std::span<const std::byte> gathered, std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes,
             std::span<const device::Top> tops);
  std::size_t size() const override { return rows_.size(); }
  const SelectedRow& row(std::size_t index) override;

 private:
  using Candidates = std::vector<FirstCandidates::Candidate>;
  std::uint32_t flags(std::size_t rank, std::size_t row) const;
  double sum(std::size_t row, std::uint32_t device::SelectionLayout::Row::*first) const;
  void find_known(std::size_t row, bool best, std::span<const device::LogitChange> changes, Candidates& known) const;

  std::vector<parallel::Range> shares_;
  std::vector<std::vector<device::SegmentRun>> runs_;  // [ranks]
  std::vector<device::SelectionLayout> layouts_;       // [ranks]
  std::vector<std::size_t> bytes_;                     // [ranks]
  std::vector<std::span<const std::byte>> of_rank_;    // [ranks]
  std::span<const device::SelectionRow> rows_;
  std::span<const device::LogitChange> changes_;
  std::span<const device::Top> tops_;
  std::vector<std::size_t> first_changes_;  // [rows]
  SelectedRow row_;                         // the latest one, and its candidates
  Candidates candidates_, best_;
};

}  // namespace lockstep::engine
