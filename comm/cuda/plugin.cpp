#include "comm/cuda/plugin.h"

#include <cuda_runtime.h>

#include "comm/cuda/cuda_communicator.h"
#include "device/cuda/cuda_device.h"

namespace lockstep::comm {
namespace {

int count_devices(std::string& problem) {
  int count = 0;
  const cudaError_t state = cudaGetDeviceCount(&count);
  if (state == cudaSuccess && count > 0) return count;
  problem = state == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(state);
  return 0;
}

CudaRank open_rank(Communicator& host, const CudaRankOptions& options) {
  std::string problem;
  const int visible = count_devices(problem);
  if (visible == 0) throw std::runtime_error("the GPUs can not be used: " + problem);
  const int ordinal = device::cuda::choose_ordinal(visible, options.local_rank, options.local_size, options.allow_shared_gpu);
  auto device = device::cuda::make_cuda_device({.ordinal = ordinal, .graphs = options.graphs});
  CudaRank rank;
  rank.communicator = make_cuda_communicator(host, {.stream = device->stream(),
                                                    .num_multiprocessors = device->num_multiprocessors(),
                                                    .same_machine = options.local_size == host.size(),
                                                    .fast = options.fast,
                                                    .allow_shared_gpu = options.allow_shared_gpu,
                                                    .deadline = options.deadline,
                                                    .tuning = options.tuning});
  // A peer that is gone leaves this rank's stream waiting: the wait looks at the group.
  device->set_watch([communicator = rank.communicator.get(), deadline = options.deadline](std::chrono::steady_clock::duration waited) {
    communicator->check();
    if (waited > deadline) {
      const std::string seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(deadline).count());
      communicator->abort("rank " + std::to_string(communicator->rank()) + " waited for its GPU for more than " + seconds + " s");
      communicator->check();
    }
  });
  rank.device = std::move(device);
  return rank;
}

constexpr CudaPlugin kPlugin{.count_devices = count_devices, .open_rank = open_rank};

}  // namespace
}  // namespace lockstep::comm

extern "C" __attribute__((visibility("default"))) const lockstep::comm::CudaPlugin* lockstep_cuda_plugin() {
  return &lockstep::comm::kPlugin;
}
