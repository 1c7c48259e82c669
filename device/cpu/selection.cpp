#include "device/cpu/selection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/first_candidates.h"
#include "device/cpu/vocabulary_sum.h"

namespace lockstep::device::cpu {
namespace {

/// A mass that is reported as the sum of the row has to be exact.
bool sketches_mass(const SelectionRow& wanted) { return wanted.log_sum != LogSum::kIsMass && can_sketch_mass(wanted.scale); }

std::size_t num_groups(std::size_t columns) { return (columns + kSketchGroup - 1) / kSketchGroup; }

}  // namespace

/// op(thread, index) for every row of the selection.
template <class Op>
void CpuSelection::over_rows(std::size_t num_rows, const Op& op) {
  if (pool_.size() == 1 || num_rows < 2) {
    for (std::size_t row = 0; row < num_rows; ++row) op(std::size_t{0}, row);
    return;
  }
  pool_.run([&](std::size_t thread) {
    const std::size_t end = num_rows * (thread + 1) / pool_.size();
    for (std::size_t row = num_rows * thread / pool_.size(); row < end; ++row) op(thread, row);
  });
}

void CpuSelection::expect(std::span<const SelectionRow> selection, std::size_t num_rows, std::size_t columns) {
  expected_.assign(num_rows, {});
  bool is_any = false;
  for (const SelectionRow& row : selection) {
    if (row.num_changes != 0 || row.row >= num_rows) continue;
    expected_[row.row] = {sketches_mass(row) ? row.scale : 0.0, true};
    is_any = true;
  }
  sketched_.assign(num_rows * pool_.size(), {});
  if (is_any) sketched_maxima_.resize(std::max(sketched_maxima_.size(), num_rows * num_groups(columns)));
  num_groups_ = num_groups(columns);
}

Top CpuSelection::sketch(std::size_t thread, std::size_t row, std::size_t first, std::span<const float> part, const float* next) {
  const double scale = expected_[row].scale;
  float* maxima = sketched_maxima_.data() + row * num_groups_ + first / kSketchGroup;
  const SketchedPart found = sketch_part(part, scale, isa_, maxima, next);
  SketchedMass& so_far = sketched_[row * pool_.size() + thread];
  const bool is_higher = found.mass.maximum > so_far.maximum;
  so_far.add(found.mass, scale);
  if (!is_higher) return {LogitChange::kMask, -1, found.finite};
  const auto is_top = [&](float logit) { return logit == found.mass.maximum; };
  const auto group = std::find_if(maxima, maxima + num_groups(part.size()), is_top) - maxima;
  const auto top = std::find_if(part.begin() + group * static_cast<std::ptrdiff_t>(kSketchGroup), part.end(), is_top);
  return {*top, static_cast<std::int32_t>(first) + static_cast<std::int32_t>(top - part.begin()), found.finite};
}

void CpuSelection::change_row(float* row, std::size_t index) {
  flags_[index] = kIsFinite;
  for (std::size_t i = first_changes_[index]; i < first_changes_[index + 1]; ++i) {
    float& logit = row[changes_[i].id];
    saved_[i] = logit;
    logit = changed(logit, changes_[i]);
    if (!changes_[i].masks() && !std::isfinite(logit)) flags_[index] = 0;
  }
}

/// A whole row, where that was not done as its logits were computed.
void CpuSelection::sketch_row(std::span<const float> row, const SelectionRow& wanted) {
  const Expected is{sketches_mass(wanted) ? wanted.scale : 0.0, true};
  if (wanted.num_changes == 0 && expected_[wanted.row] == is) return;
  expected_[wanted.row] = is;
  SketchedMass mass;
  float* maxima = sketched_maxima_.data() + wanted.row * num_groups_;
  for (std::size_t first = 0; first < row.size(); first += kSketchPart) {
    const std::span<const float> part = row.subspan(first, std::min(kSketchPart, row.size() - first));
    mass.add(sketch_part(part, is.scale, isa_, maxima + first / kSketchGroup).mass, is.scale);
  }
  const auto sketched = std::span(sketched_).subspan(wanted.row * pool_.size(), pool_.size());
  std::fill(sketched.begin(), sketched.end(), SketchedMass{});
  sketched[0] = mass;
}

/// Of a row that is sketched, relative to a maximum that is not lower than its own.
double CpuSelection::own_mass(std::size_t row, float maximum, double scale) const {
  double mass = 0.0;
  for (const SketchedMass& part : std::span(sketched_).subspan(row * pool_.size(), pool_.size())) mass += part.relative_to(maximum, scale);
  return mass;
}

void CpuSelection::begin(float* logits, std::size_t columns, std::span<const float> tops, const Selection& selection, std::size_t rank,
                         std::size_t num_ranks, float* peaks) {
  const std::size_t num_rows = selection.rows.size();
  layout_.reset(selection.rows, columns, runs_.size());
  changes_ = selection.changes;
  first_changes_.assign(1, 0);
  for (const SelectionRow& row : selection.rows) first_changes_.push_back(first_changes_.back() + row.num_changes);
  saved_.resize(selection.changes.size());
  found_.resize(layout_.size_bytes() / sizeof(double));
  if (!found_.empty()) found_.back() = 0.0;  // the flags may not fill it
  auto* bytes = reinterpret_cast<std::byte*>(found_.data());
  sums_ = {found_.data(), layout_.num_sums()};
  candidates_ = {reinterpret_cast<Candidate*>(bytes + layout_.candidates_offset()), layout_.num_candidates()};
  flags_ = {reinterpret_cast<std::uint32_t*>(bytes + layout_.flags_offset()), num_rows};
  std::fill(flags_.begin(), flags_.end(), kIsFinite);
  std::fill_n(peaks, kPeakSize * num_ranks * num_rows, 0.0f);
  sketched_maxima_.resize(std::max(sketched_maxima_.size(), expected_.size() * num_groups_));
  over_rows(num_rows, [&](std::size_t, std::size_t index) {
    const SelectionRow& wanted = selection.rows[index];
    float* peak = peaks + kPeakSize * (rank * num_rows + index);
    peak[0] = peak[1] = -std::numeric_limits<float>::infinity();
    if (columns == 0) return;
    float* row = logits + wanted.row * columns;
    change_row(row, index);
    sketch_row({row, columns}, wanted);
    for (std::size_t part = 0; part < pool_.size(); ++part)
      peak[0] = std::max(peak[0], sketched_[wanted.row * pool_.size() + part].maximum);
    peak[1] = tops[wanted.row];
    if (sketches_mass(wanted)) peak[2] = static_cast<float>(own_mass(wanted.row, peak[0], wanted.scale));
  });
}

void CpuSelection::sum_runs(std::span<const float> row, float maximum, double scale, std::size_t first) {
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::size_t begin = (runs_[run].begin - runs_.front().begin) * kVocabularySegment;
    const std::size_t count = std::min<std::size_t>(runs_[run].size * kVocabularySegment, row.size() - begin);
    sums_[first + run] = sum_of_exponentials(row.subspan(begin, count), maximum, scale, isa_);
  }
}

/// As the first of the sums: what it lacks in exactness is more than their order would change.
void CpuSelection::keep_sketched_mass(double mass, std::size_t first) {
  std::fill_n(sums_.begin() + static_cast<std::ptrdiff_t>(first), runs_.size(), 0.0);
  sums_[first] = mass;
}

/// Finds the first candidates, as many as are worth enough or hardly more; at most `most`. Returns how many.
std::size_t CpuSelection::find_enough(std::span<const float> row, std::size_t most, std::span<const float> maxima, float maximum,
                                      double scale, double enough, std::size_t thread) {
  constexpr std::size_t kFewest = 16, kGrowth = 4, kTogether = 128;  // sums of so many values use vectors alone
  std::vector<float>& logits = found_logits_[thread];
  for (std::size_t count = kFewest; count < most; count *= kGrowth) {
    first_candidates(row, count, most, maxima, isa_, keys_[thread]);
    logits.clear();
    for (const std::uint64_t key : keys_[thread]) logits.push_back(row[static_cast<std::uint32_t>(key)]);
    const std::size_t num_found = logits.size();
    if (num_found > kTogether / 4) logits.resize((num_found + kTogether - 1) / kTogether * kTogether, LogitChange::kMask);
    if (sum_of_exponentials(logits, maximum, scale, isa_) >= enough) return num_found;
  }
  first_candidates(row, most, most, maxima, isa_, keys_[thread]);
  return most;
}

/// Only ids: the logits may be changed ones.
void CpuSelection::keep_ids(std::size_t count, std::size_t first, std::size_t thread) {
  const std::vector<std::uint64_t>& keys = keys_[thread];
  for (std::size_t i = 0; i < count; ++i) candidates_[first + i].id = i < keys.size() ? static_cast<std::uint32_t>(keys[i]) : 0;
}

void CpuSelection::finish_row(float* row, std::size_t columns, const SelectionRow& wanted, std::size_t index, const WholeRow& whole,
                              std::size_t thread) {
  const SelectionLayout::Row& place = layout_.rows()[index];
  const std::span<const float> logits(row, columns);
  const auto maxima = std::span(sketched_maxima_).subspan(wanted.row * num_groups_, num_groups_);
  std::size_t num_candidates = place.num_candidates;
  if (sketches_mass(wanted)) {
    const double mass = own_mass(wanted.row, whole.changed.maximum, wanted.scale);
    keep_sketched_mass(mass, place.sums);
    flags_[index] |= kIsSketched;
    if (whole.changed.mass > 0.0 && wanted.covered > 0.0) {
      // What no candidate covers lies on all ranks, on each about as much. If a rank left out more than there is behind the last token that
      // is wanted, the row would have to be fetched, so it leaves out a quarter of its share.
      const double part = whole.num_ranks == 1 ? 1.0 : 0.25 / static_cast<double>(whole.num_ranks);
      const double enough = mass * (1.0 + 2.0 * kMassError) - part * (1.0 - wanted.covered) * whole.changed.mass;
      num_candidates = find_enough(logits, num_candidates, maxima, whole.changed.maximum, wanted.scale, enough, thread);
    } else {
      first_candidates(logits, num_candidates, num_candidates, maxima, isa_, keys_[thread]);
    }
  } else {
    if (wanted.scale != 0.0) sum_runs(logits, whole.changed.maximum, wanted.scale, place.sums);
    first_candidates(logits, num_candidates, num_candidates, maxima, isa_, keys_[thread]);
  }
  keep_ids(num_candidates, place.candidates, thread);
  flags_[index] |= static_cast<std::uint32_t>(place.num_candidates - num_candidates) << kLeftOutShift;
  for (std::size_t i = first_changes_[index]; i < first_changes_[index + 1]; ++i) row[changes_[i].id] = saved_[i];
  if (wanted.log_sum == LogSum::kOwn) sum_runs(logits, whole.maximum, 1.0, place.log_sums);
  first_candidates(logits, place.num_best, place.num_best, {}, isa_, keys_[thread]);
  keep_ids(place.num_best, place.best, thread);
  for (std::size_t i = 0; i < num_candidates; ++i) {
    Candidate& candidate = candidates_[place.candidates + i];
    candidate.logit = row[candidate.id];
  }
  for (std::size_t i = 0; i < place.num_best; ++i) candidates_[place.best + i].logit = row[candidates_[place.best + i].id];
}

void CpuSelection::finish(float* logits, std::size_t columns, const Selection& selection, std::size_t num_ranks, const float* peaks) {
  if (columns == 0) return;
  const std::size_t num_rows = selection.rows.size();
  over_rows(num_rows, [&](std::size_t thread, std::size_t index) {
    const SelectionRow& wanted = selection.rows[index];
    WholeRow whole{{}, -std::numeric_limits<float>::infinity(), num_ranks};
    bool is_known = true;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      const float* peak = peaks + kPeakSize * (rank * num_rows + index);
      const SketchedMass mass{peak[0], static_cast<double>(peak[2])};
      is_known = is_known && (peak[2] > 0.0f || !(peak[0] > -std::numeric_limits<float>::infinity()));
      whole.changed.add(mass, sketches_mass(wanted) ? wanted.scale : 0.0);
      whole.maximum = std::max(whole.maximum, peak[1]);
    }
    if (!is_known) whole.changed.mass = 0.0;
    finish_row(logits + wanted.row * columns, columns, wanted, index, whole, thread);
  });
}

}  // namespace lockstep::device::cpu
