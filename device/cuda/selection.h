#pragma once

#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/views.h"

namespace lockstep::device::cuda {

/// Selection on a GPU: see Device::begin_selection. Nothing here waits for the GPU.
class CudaSelection {
 public:
  CudaSelection() = default;
  ~CudaSelection();
  CudaSelection(const CudaSelection&) = delete;
  CudaSelection& operator=(const CudaSelection&) = delete;

  void prepare(std::size_t max_rows, std::span<const SegmentRun> runs);
  /// `tops` of all rows of `logits`, in device memory.
  void begin(const Launch& where, Rows logits, const Top* tops, const Selection& selection, std::size_t rank, std::size_t num_ranks,
             float* peaks);
  /// Enqueues the copy of the results too.
  void finish(const Launch& where, Rows logits, std::size_t num_ranks, const float* peaks);
  /// Once the stream has been waited for: what stands in the staging memory.
  std::span<const std::byte> found();

 private:
  void upload(const Launch& where, const Selection& selection);
  void launch_sums(const Launch& where, const struct SelectionView& view, const float* peaks, unsigned first, unsigned count) const;
  void launch_candidates(const Launch& where, const struct SelectionView& view, unsigned first, unsigned count) const;
  struct SelectionView view(Rows logits, std::size_t num_ranks) const;

  std::size_t max_rows_ = 0;
  std::size_t num_runs_ = 0;
  DeviceMemory runs_;
  SelectionLayout layout_;
  std::size_t num_changes_ = 0;
  bool has_mass_ = false, has_log_sum_ = false, has_best_ = false;
  // Tasks, then changes, then the logits that were saved: uploaded as one block, but for the last part.
  DeviceMemory input_;
  PinnedMemory input_staging_;
  std::size_t changes_offset_ = 0, saved_offset_ = 0;
  DeviceMemory found_;
  PinnedMemory read_found_;
  cudaEvent_t copied_ = nullptr;  // the staging memory is free again
};

}  // namespace lockstep::device::cuda
