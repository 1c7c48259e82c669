#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/row_sketch.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"
#include "device/selection.h"

namespace lockstep::device::cpu {

/// Selection on the CPU device: see Device::begin_selection. Rows are spread over the threads of the pool.
class CpuSelection {
 public:
  CpuSelection(ThreadPool& pool, Isa isa) : pool_(pool), isa_(isa), keys_(pool.size()), found_logits_(pool.size()) {}

  void prepare(std::span<const SegmentRun> runs) { runs_.assign(runs.begin(), runs.end()); }

  /// Forgets earlier sketches, and makes room for those of the rows that `selection` wants unchanged; there may be none.
  /// @param columns  ids of the rank
  void expect(std::span<const SelectionRow> selection, std::size_t num_rows, std::size_t columns);
  /// Whether the row is one of those: then every thread sketches its part of it.
  bool expects(std::size_t row) const { return expected_[row].is_wanted; }
  /// A part of the row, by the thread that has just computed it; each goes from left to right. Returns the top of the part, id -1 if an
  /// earlier part has a logit as high.
  /// @param first  its first column, a multiple of kSketchGroup
  /// @param next   where as many logits will be read next, or null
  Top sketch(std::size_t thread, std::size_t row, std::size_t first, std::span<const float> part, const float* next);

  /// @param columns  ids of the rank
  /// @param tops     of all rows, as they are
  void begin(float* logits, std::size_t columns, std::span<const float> tops, const Selection& selection, std::size_t rank,
             std::size_t num_ranks, float* peaks);
  void finish(float* logits, std::size_t columns, const Selection& selection, std::size_t num_ranks, const float* peaks);
  std::span<const std::byte> found() const { return std::as_bytes(std::span(found_)); }

 private:
  /// What all ranks together know of a row.
  struct WholeRow {
    SketchedMass changed;  // mass: 0 if it is not known
    float maximum = 0.0f;
    std::size_t num_ranks = 1;
  };
  void change_row(float* row, std::size_t index);
  void sketch_row(std::span<const float> row, const SelectionRow& wanted);
  double own_mass(std::size_t row, float maximum, double scale) const;
  void finish_row(float* row, std::size_t columns, const SelectionRow& wanted, std::size_t index, const WholeRow& whole,
                  std::size_t thread);
  void sum_runs(std::span<const float> row, float maximum, double scale, std::size_t first);
  void keep_sketched_mass(double mass, std::size_t first);
  std::size_t find_enough(std::span<const float> row, std::size_t most, std::span<const float> maxima, float maximum, double scale,
                          double enough, std::size_t thread);
  void keep_ids(std::size_t count, std::size_t first, std::size_t thread);
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
  std::vector<std::vector<float>> found_logits_;  // [threads]

  struct Expected {
    double scale = 0.0;  // of the mass; 0: it is not wanted
    bool is_wanted = false;
    bool operator==(const Expected&) const = default;
  };
  std::vector<Expected> expected_;      // [logit rows of the step]
  std::vector<SketchedMass> sketched_;  // [logit rows][threads]
  std::vector<float> sketched_maxima_;  // [logit rows][groups]
  std::size_t num_groups_ = 0;
};

}  // namespace lockstep::device::cpu
