#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/runtime/selection_merge.h"

namespace lockstep::engine {

/// One rank's part in the selection of tokens from logits that are cut by vocabulary (docs/numerics.md, N6). Every rank makes the same
/// calls.
class RankSelection {
 public:
  /// Device and communicator must outlive the object. @param shares [ranks]: ids of each, ascending from 0
  RankSelection(std::vector<parallel::Range> shares, std::size_t max_rows, device::Device& device, comm::Communicator& communicator);
  ~RankSelection();

  /// Enqueues the work on the device, behind its top_of_rows(). `rows` and `changes` (ids of the whole vocabulary) are needed no longer.
  /// @throws std::runtime_error for a change outside the vocabulary.
  void select(const device::Matrix& logits, std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes);

  /// Waits for the device; rank 0 gets what all ranks found, valid until the next selection and as long as the arguments are; null
  /// elsewhere.
  /// @param tops    rank 0: of all logit rows, over the whole vocabulary
  SelectedRows* gather(std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes,
                       std::span<const device::Top> tops);

 private:
  void take_own(std::span<const device::SelectionRow> rows, std::span<const device::LogitChange> changes);
  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }

  std::vector<parallel::Range> shares_;
  device::Device& device_;
  comm::Communicator& communicator_;
  SelectionMerge merge_;
  comm::TreeSum sum_of_ranks_;  // one value of each
  std::unique_ptr<device::Buffer> peaks_;
  std::vector<device::SelectionRow> own_rows_;
  std::vector<device::LogitChange> own_changes_;
  std::vector<std::byte> all_found_;
};

}  // namespace lockstep::engine
