#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime.h>

#include "device/device.h"

namespace lockstep::device::cuda {

struct CudaOptions {
  int ordinal = 0;               // among the visible devices
  bool graphs = true;            // decode steps are recorded once for each batch size, and replayed
  bool fast = false;             // --reduction fast: products of F16 and BF16 weights by cuBLASLt, for which the weights are kept twice
  std::size_t host_threads = 1;  // that read and repack weights
};

/// One GPU. Ops are launched on one stream of the device's own, and the host waits only where a result comes back to it.
class CudaDevice : public Device {
 public:
  virtual cudaStream_t stream() const = 0;
  virtual int num_multiprocessors() const = 0;

  /// Called again and again while the host waits for the GPU, with how long it has waited; it throws to end the wait.
  using Watch = std::function<void(std::chrono::steady_clock::duration waited)>;
  virtual void set_watch(Watch watch) = 0;

  /// Destroys the recordings of steps. Collectives that stand in them cannot end before (see CudaCommunicatorOptions).
  virtual void forget_recordings() = 0;
};

/// The GPU of a rank: number `local_rank` of those that this process sees, or the only one where each task was given its own.
/// @throws std::invalid_argument if there are fewer than the ranks of this machine and `allow_sharing` is not set.
int choose_ordinal(int num_visible, int local_rank, int local_size, bool allow_sharing);

/// @throws CudaError; std::runtime_error for a GPU that the kernels are not built for.
std::unique_ptr<CudaDevice> make_cuda_device(const CudaOptions& options);

}  // namespace lockstep::device::cuda
