#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/row_sketch.h"
#include "device/cpu/thread_pool.h"
#include "device/selection.h"

namespace lockstep::device::cpu {

/// Selection on the CPU device: see Device::begin_selection. Rows are spread over the threads of the pool.
class CpuSelection {
 public:
  CpuSelection(ThreadPool& pool, Isa isa) : pool_(pool), isa_(isa), keys_(pool.size()), sketches_(pool.size()) {}

  void prepare(std::span<const SegmentRun> runs) { runs_.assign(runs.begin(), runs.end()); }
  /// @param columns  ids of the rank
  /// @param tops     of all rows, as they are
  void begin(float* logits, std::size_t columns, std::span<const float> tops, const Selection& selection, std::size_t rank,
             std::size_t num_ranks, float* maxima);
  void finish(float* logits, std::size_t columns, const Selection& selection, std::size_t num_ranks, const float* maxima);
  std::span<const std::byte> found() const { return std::as_bytes(std::span(found_)); }

 private:
  float change_row(float* row, std::size_t columns, float top, std::size_t index);
  void finish_row(float* row, std::size_t columns, const SelectionRow& wanted, std::size_t index, float changed_maximum, float maximum,
                  std::size_t thread);
  void sum_runs(std::span<const float> row, float maximum, double scale, std::size_t first);
  void keep_sketched_mass(double mass, std::size_t first);
  void find_candidates(std::span<const float> row, std::size_t count, std::span<const float> maxima, std::size_t first, std::size_t thread);
  template <class Op>
  void over_rows(std::size_t num_rows, const Op& op);

  ThreadPool& pool_;
  Isa isa_;
  std::vector<SegmentRun> runs_;
  SelectionLayout layout_;
  std::span<const LogitChange> changes_;
  std::vector<std::size_t> first_changes_;  // [rows + 1]
  std::vector<float> saved_;                // [changes]: the logits as they were
  std::vector<double> found_;               // as layout_ says: these three
  std::span<double> sums_;
  std::span<Candidate> candidates_;
  std::span<std::uint32_t> flags_;                // [rows]
  std::vector<std::vector<std::uint64_t>> keys_;  // [threads]
  std::vector<RowSketch> sketches_;               // [threads]
};

}  // namespace lockstep::device::cpu
