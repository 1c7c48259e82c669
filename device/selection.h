#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lockstep::device {

/// Ids of a vocabulary are added up in segments of this many (docs/numerics.md, N6).
inline constexpr std::size_t kVocabularySegment = 16;

/// The most candidates of one row that can be asked for.
inline constexpr std::uint32_t kMaxCandidates = 1024;

/// What happens to one logit before a token is selected (docs/numerics.md, N6).
struct LogitChange {
  static constexpr float kMask = -std::numeric_limits<float>::infinity();
  std::uint32_t id = 0;
  float bias = 0.0f;        // added; kMask: the id can not be selected, and the rest is of no interest
  float repetition = 1.0f;  // then a positive logit is divided by it, any other multiplied
  float subtracted = 0.0f;  // then subtracted
  bool masks() const { return bias == kMask; }
  bool operator==(const LogitChange&) const = default;
};

/// The change, each operation rounded to fp32.
inline float changed(float logit, const LogitChange& change) {
  if (change.masks()) return LogitChange::kMask;
  const float biased = logit + change.bias;
  const float repeated = biased > 0.0f ? biased / change.repetition : biased * change.repetition;
  return repeated - change.subtracted;
}

/// kIsMass: it is the sum of the changed row, because nothing is changed and the scale is 1.
enum class LogSum : std::uint32_t { kNone = 0, kOwn = 1, kIsMass = 2 };

/// What is wanted of one row of logits.
struct SelectionRow {
  double scale = 0.0;                // of the exponentials of the changed row; 0: their sum is not wanted
  double covered = 0.0;              // the part of that sum that candidates have to have; 0: as many are wanted as there may be
  std::uint32_t row = 0;             // of the logits of the step
  std::uint32_t num_changes = 0;     // of its logits: the next ones of Selection::changes, ids ascending
  std::uint32_t num_candidates = 0;  // of the changed row, at least 1; a device may give fewer, once they cover enough
  std::uint32_t num_best = 0;        // of the row as it is
  LogSum log_sum = LogSum::kNone;    // the sum of the exponentials of the row as it is, scale 1
  std::uint32_t num_masked = 0;      // of its changes, those that mask
  bool operator==(const SelectionRow&) const = default;
};

/// What ranks tell each other of a row before they look for candidates, in fp32: the maximum of the changed row, that of the row as it is,
/// and about the sum of exp((logit - maximum) * scale) over the changed row, relative to the rank's own maximum; 0 if it is not known.
inline constexpr std::size_t kPeakSize = 3;

struct Selection {
  std::span<const SelectionRow> rows;
  std::span<const LogitChange> changes;  // ids of a row ascending, no id twice
};

/// A logit of a row as it is.
struct Candidate {
  float logit = 0.0f;
  std::uint32_t id = 0;
};

/// Ascending keys are the order of candidates: logits descending (0 and -0 are equal), then ids ascending. The id is the low half.
inline std::uint64_t candidate_key(float logit, std::uint32_t id) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 becomes 0
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return std::uint64_t{~ascending} << 32 | id;
}

/// A node of the tree over the vocabulary's segments whose size is a power of two, and where it begins a multiple of its size.
struct SegmentRun {
  std::uint32_t begin = 0;
  std::uint32_t size = 0;
  bool operator==(const SegmentRun&) const = default;
};

/// Segments [begin, end) as the fewest such nodes, ascending. @pre both fit into 32 bits
std::vector<SegmentRun> segment_runs(std::size_t begin, std::size_t end);

/// Where the results of a selection stand in one block of bytes, for one rank's part of the vocabulary.
class SelectionLayout {
 public:
  struct Row {
    std::uint32_t sums = 0;        // index of the first double of [runs]: the exponentials of the changed row
    std::uint32_t log_sums = 0;    // likewise, of the row as it is
    std::uint32_t candidates = 0;  // index of the first of num_candidates
    std::uint32_t num_candidates = 0;
    std::uint32_t best = 0;  // likewise
    std::uint32_t num_best = 0;
  };
  SelectionLayout() = default;
  /// @param num_ids   of the rank
  /// @param num_runs  of its segments
  void reset(std::span<const SelectionRow> rows, std::size_t num_ids, std::size_t num_runs);

  std::span<const Row> rows() const { return rows_; }
  std::size_t num_sums() const { return num_sums_; }
  std::size_t num_candidates() const { return num_candidates_; }
  std::size_t num_runs() const { return num_runs_; }
  /// The block: sums, then candidates, then for each row flags: those of device/cpu/row_sketch.h (GPUs sketch nothing,
  /// and leave nothing out).
  std::size_t candidates_offset() const { return num_sums_ * sizeof(double); }
  std::size_t flags_offset() const { return candidates_offset() + num_candidates_ * sizeof(Candidate); }
  std::size_t size_bytes() const { return (flags_offset() + rows_.size() * sizeof(std::uint32_t) + 7) / 8 * 8; }

 private:
  std::vector<Row> rows_;
  std::size_t num_sums_ = 0;
  std::size_t num_candidates_ = 0;
  std::size_t num_runs_ = 0;
};

}  // namespace lockstep::device
