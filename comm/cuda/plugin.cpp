#include "comm/cuda/plugin.h"

#include <cuda_runtime.h>

#include "comm/cuda/cuda_communicator.h"
#include "comm/cuda/measure.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/probe.h"

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

std::unique_ptr<device::cuda::CudaDevice> open_device(const CudaRankOptions& options) {
  std::string problem;
  const int visible = count_devices(problem);
  if (visible == 0) throw std::runtime_error("the GPUs can not be used: " + problem);
  const int ordinal = device::cuda::choose_ordinal(visible, options.local_rank, options.local_size, options.allow_shared_gpu);
  return device::cuda::make_cuda_device(
      {.ordinal = ordinal, .graphs = options.graphs, .fast = options.fast, .host_threads = options.host_threads});
}

CudaCommunicatorOptions communicator_options(const Communicator& host, device::cuda::CudaDevice& device, const CudaRankOptions& options) {
  return {.stream = device.stream(),
          .num_multiprocessors = device.num_multiprocessors(),
          .same_machine = options.local_size == host.size(),
          .fast = options.fast,
          .share_gpu = options.allow_shared_gpu,
          .max_values = kExchangedFloats,
          .max_roots = 1,
          .deadline = options.deadline,
          .tuning = options.tuning,
          .forget_recordings = [&device] { device.forget_recordings(); }};
}

CudaRank open_rank(Communicator& host, const CudaRankOptions& options) {
  auto device = open_device(options);
  auto between = make_cuda_communicator(host, communicator_options(host, *device, options));
  // A peer that is gone leaves this rank's stream waiting: the wait looks at the group.
  device->set_watch([communicator = between.get()](std::chrono::steady_clock::duration waited) { communicator->waiting(waited); });
  CudaRank rank;
  rank.communicator = std::move(between);
  rank.device = std::move(device);
  return rank;
}

double measure_bandwidth(device::Device& device) {
  return device::cuda::measure_read_bandwidth(static_cast<device::cuda::CudaDevice&>(device));
}

double measure_peak_flops(device::Device& device) {
  return device::cuda::measure_tensor_flops(static_cast<device::cuda::CudaDevice&>(device));
}

TransportTimes measure_transports(Communicator& host, const CudaRankOptions& options, const std::vector<std::size_t>& sizes) {
  const auto device = open_device(options);
  return cuda::measure_transports(host, *device, communicator_options(host, *device, options), sizes);
}

constexpr CudaPlugin kPlugin{.count_devices = count_devices,
                             .open_rank = open_rank,
                             .measure_bandwidth = measure_bandwidth,
                             .measure_peak_flops = measure_peak_flops,
                             .measure_transports = measure_transports};

}  // namespace
}  // namespace lockstep::comm

extern "C" __attribute__((visibility("default"))) const lockstep::comm::CudaPlugin* lockstep_cuda_plugin() {
  return &lockstep::comm::kPlugin;
}
