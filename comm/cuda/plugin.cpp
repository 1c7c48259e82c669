#include "comm/cuda/plugin.h"

#include <cuda_runtime.h>

#include "comm/cuda/cuda_communicator.h"
#include "device/cuda/cuda_device.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kExchangedFloats = std::size_t{4} << 20;  // 16 MiB: a piece of a sum, for which NCCL takes far longer than a launch

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
  auto device = device::cuda::make_cuda_device({.ordinal = ordinal, .graphs = options.graphs, .fast = options.fast});
  auto between = make_cuda_communicator(host, {.stream = device->stream(),
                                               .num_multiprocessors = device->num_multiprocessors(),
                                               .same_machine = options.local_size == host.size(),
                                               .fast = options.fast,
                                               .share_gpu = options.allow_shared_gpu,
                                               .max_values = kExchangedFloats,
                                               .max_roots = 1,
                                               .deadline = options.deadline,
                                               .tuning = options.tuning,
                                               .forget_recordings = [device = device.get()] { device->forget_recordings(); }});
  // A peer that is gone leaves this rank's stream waiting: the wait looks at the group.
  device->set_watch([communicator = between.get()](std::chrono::steady_clock::duration waited) { communicator->waiting(waited); });
  CudaRank rank;
  rank.communicator = std::move(between);
  rank.device = std::move(device);
  return rank;
}

constexpr CudaPlugin kPlugin{.count_devices = count_devices, .open_rank = open_rank};

}  // namespace
}  // namespace lockstep::comm

extern "C" __attribute__((visibility("default"))) const lockstep::comm::CudaPlugin* lockstep_cuda_plugin() {
  return &lockstep::comm::kPlugin;
}
