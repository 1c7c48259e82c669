#pragma once

#include <span>

#include "device/cuda/linear.h"
#include "device/cuda/memory.h"
#include "device/cuda/views.h"

/// Mixtures of experts. See Device::route and Device::experts. @throws CudaError
namespace lockstep::device::cuda {

void route(const Launch& launch, Rows logits, std::size_t num_rows, const Routing& routing, Rows out);

/// Sums over experts, with the memory that they need. Every expert computes all tokens of the step, and the weights of those that did not
/// choose it are passed over: which tokens go where is known on the GPU alone, so a recorded step can be replayed.
class ExpertSums {
 public:
  /// @throws std::invalid_argument if there are more leaves than the kernels take.
  void run(const Launch& launch, Rows h, std::size_t num_rows, Rows routing, std::span<const Expert> experts, const Gating& gating,
           std::span<const Leaf> leaves, Rows out);

 private:
  Rows matrix(DeviceMemory& memory, Activation type, std::size_t num_rows, std::size_t columns);

  DeviceMemory products_, inner_, partial_, sums_;
};

}  // namespace lockstep::device::cuda
