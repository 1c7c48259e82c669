#include "device/selection.h"

#include <algorithm>

namespace lockstep::device {

std::vector<SegmentRun> segment_runs(std::size_t begin, std::size_t end) {
  std::vector<SegmentRun> runs;
  while (begin < end) {
    std::size_t size = std::bit_floor(end - begin);
    if (begin != 0) size = std::min(size, begin & ~(begin - 1));  // its lowest bit: where a node of that size may begin
    runs.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(size)});
    begin += size;
  }
  return runs;
}

void SelectionLayout::reset(std::span<const SelectionRow> rows, std::size_t num_ids, std::size_t num_runs) {
  rows_.clear();
  num_sums_ = 0;
  num_candidates_ = 0;
  num_runs_ = num_runs;
  for (const SelectionRow& row : rows) {
    Row place;
    place.sums = static_cast<std::uint32_t>(num_sums_);
    if (row.scale != 0.0) num_sums_ += num_runs;
    place.log_sums = row.log_sum == LogSum::kIsMass ? place.sums : static_cast<std::uint32_t>(num_sums_);
    if (row.log_sum == LogSum::kOwn) num_sums_ += num_runs;
    place.candidates = static_cast<std::uint32_t>(num_candidates_);
    place.num_candidates = static_cast<std::uint32_t>(std::min<std::size_t>(row.num_candidates, num_ids));
    num_candidates_ += place.num_candidates;
    place.best = static_cast<std::uint32_t>(num_candidates_);
    place.num_best = static_cast<std::uint32_t>(std::min<std::size_t>(row.num_best, num_ids));
    num_candidates_ += place.num_best;
    rows_.push_back(place);
  }
}

}  // namespace lockstep::device
