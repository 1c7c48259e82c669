#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/memory.h"
#include "device/cuda/views.h"

namespace lockstep::device::cuda {

/// The step in device memory: one block that is filled in pinned memory and copied as a whole, so that its addresses stay and a recorded
/// graph reads whatever was uploaded last.
class StepBuffers {
 public:
  explicit StepBuffers(const StepLimits& limits);
  ~StepBuffers();
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  const StepLimits& limits() const { return limits_; }

  /// Uploads `batch` on `stream`. With `padded_rows` > 0 it is a decode step: every sequence has one token, and tokens, sequences and logit
  /// rows are filled up to that number. @throws std::invalid_argument where the batch is beyond the limits.
  void upload(const StepBatch& batch, std::size_t padded_rows, cudaStream_t stream);
  /// What was uploaded last.
  const StepView& view() const { return view_; }

 private:
  /// Byte offsets in the block, in the order in which they stand there: the part that depends on the step's size is last.
  struct Layout {
    std::size_t token_ids = 0;
    std::size_t positions = 0;
    std::size_t sequence_of = 0;
    std::size_t logit_rows = 0;
    std::size_t sequences = 0;
    std::size_t block_tables = 0;
    std::size_t end = 0;
  };
  template <class T>
  T* host(std::size_t offset) const {
    return reinterpret_cast<T*>(staging_.as<std::byte>() + offset);
  }
  template <class T>
  const T* device(std::size_t offset) const {
    return reinterpret_cast<const T*>(memory_.as<std::byte>() + offset);
  }
  void check_limits(const StepBatch& batch, std::size_t padded_rows) const;
  void fill(const StepBatch& batch, std::size_t padded_rows);

  StepLimits limits_;
  Layout layout_;
  DeviceMemory memory_;
  PinnedMemory staging_;
  cudaEvent_t copied_ = nullptr;  // the staging memory is free again
  StepView view_;
};

}  // namespace lockstep::device::cuda
