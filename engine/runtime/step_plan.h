#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace lockstep::engine {

enum class StepKind : std::uint8_t {
  kRun = 0,    // compute `batch`
  kStop = 1,   // the orderly end: there is no further plan
  kAbort = 2,  // the job failed on rank 0; `reason` says why. There is no further plan
  kFetch = 3,  // gather the logit rows `fetched` of the step before as they are
};

/// What rank 0 wants back of a row of logits.
enum class RowWants : std::uint8_t {
  kTop = 0,        // only the top over the whole vocabulary
  kLogits = 1,     // the top, and the row itself
  kSelection = 2,  // the top, and what `selections` asks for
};

/// What rank 0 tells every rank to do next: the only source of decisions, so that no rank can stand before a collective that the others do
/// not enter. An object is meant to be reused from step to step; its vectors keep their capacity.
struct StepPlan {
  StepKind kind = StepKind::kRun;
  std::uint64_t sequence = 0;                    // 1, 2, 3, ...: a receiver refuses any other order
  device::StepBatch batch;                       // kRun: at least one token
  std::vector<RowWants> wanted;                  // [batch.logit_rows]
  std::vector<device::SelectionRow> selections;  // one for each row that wants it, in their order
  std::vector<device::LogitChange> changes;      // of the selections, one after the other; ids of the whole vocabulary
  std::vector<std::uint32_t> fetched;            // kFetch: at least one, ascending
  std::string reason;                            // kAbort

  /// Room for so many tokens and sequences, and for a few thousand blocks.
  void reserve(std::size_t tokens, std::size_t num_sequences);
  /// Empty, kind kRun; capacity and sequence stay.
  void clear();
};

/// Little-endian, each number four bytes wide (sequence: eight), one byte a row that is wanted, selections and
/// changes as they lie in memory:
/// magic, version, kind, counts of the vectors in the order of StepPlan and StepBatch, block tables of a sequence, total size in bytes,
/// then the vectors. Overwrites `bytes`, keeping its capacity.
void serialize(const StepPlan& plan, std::vector<std::byte>& bytes);

/// The reverse, into a reused object.
/// @throws std::runtime_error that names the field, if the bytes are not those of a plan: wrong magic, version, kind or size, sequences
/// with gaps, rows out of range, selections that do not fit the rows, changes out of order.
void deserialize(std::span<const std::byte> bytes, StepPlan& plan);

/// What `deserialize` demands of the contents, and that every position of a sequence has a block below `num_blocks` in each of `num_tables`
/// tables; the runner calls it before it touches the cache.
/// @throws std::runtime_error that names the sequence.
void check_blocks(const device::StepBatch& batch, std::size_t block_size, std::size_t num_blocks, std::size_t num_tables = 1);

}  // namespace lockstep::engine
