#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "device/cuda/memory.h"
#include "device/cuda/views.h"
#include "device/device.h"

namespace lockstep::device::cuda {

/// Tables that the host has made and kernels read: uploaded when they are first seen, and known by where they are on the host.
/// @throws CudaError
class UploadedTables {
 public:
  /// @param device outlives this.
  explicit UploadedTables(Device& device) : device_(device) {}

  /// Other tables may stand where some have been.
  void clear();
  /// Tables by token are of a step: they are uploaded again at its first layer.
  void begin_step() { ++num_steps_; }

  /// Null: nothing is rotated.
  RotaryView rotary(const RotaryTable* table);
  /// Null where there are none.
  const float* slopes(std::span<const float> slopes);

 private:
  struct StepRotary {
    DeviceMemory cosines, sines;
    std::uint64_t step = 0;
  };
  RotaryView rotary_of_tokens(const RotaryTable& table);

  Device& device_;
  std::map<const float*, std::pair<DeviceMemory, DeviceMemory>> rotaries_;  // cos and sin, by the cosines
  std::map<const RotaryTable*, StepRotary> step_rotaries_;
  std::map<const float*, DeviceMemory> slopes_;
  std::uint64_t num_steps_ = 0;
};

}  // namespace lockstep::device::cuda
