#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/measure.h"
#include "device/device.h"

/// What the CUDA plug-in (liblockstep_cuda.so) offers to the program, which loads it at run time: so one program starts on every machine.
/// No CUDA header is needed here.
namespace lockstep::comm {

struct CudaRankOptions {
  int local_rank = 0;  // among the ranks of this machine
  int local_size = 1;
  bool allow_shared_gpu = false;               // several ranks on one GPU: for tests
  bool graphs = true;                          // record decode steps
  bool fast = false;                           // --reduction fast
  std::size_t host_threads = 1;                // that read and repack weights
  std::chrono::milliseconds deadline{120000};  // of the wait for a step
  std::filesystem::path tuning;                // see cuda_communicator.h; may be empty
};

/// A rank's GPU, and the communicator between the GPUs. The communicator goes first.
struct CudaRank {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<Communicator> communicator;
};

/// Changes with every change of the classes that cross the border: program and plug-in are of one build.
inline constexpr std::uint32_t kCudaPluginInterface = 3;

struct CudaPlugin {
  std::uint32_t interface_version = kCudaPluginInterface;
  /// GPUs that this process can use. 0 with a reason in `problem`.
  int (*count_devices)(std::string& problem) = nullptr;
  /// Collective over `host`, which must outlive what is returned. @throws std::runtime_error, CommError
  CudaRank (*open_rank)(Communicator& host, const CudaRankOptions& options) = nullptr;

  // What the GPU of a rank gives right now; `device` is of open_rank. @throws std::runtime_error
  double (*measure_bandwidth)(device::Device& device) = nullptr;   // reading its memory, bytes a second
  double (*measure_peak_flops)(device::Device& device) = nullptr;  // bf16 products by cuBLASLt, operations a second
  /// Opens the rank's GPU and measures all_reduce for sums of these sizes in bytes, ascending. Collective over `host`, two ranks at least.
  /// @throws as open_rank
  TransportTimes (*measure_transports)(Communicator& host, const CudaRankOptions& options, const std::vector<std::size_t>& sizes) = nullptr;
};

/// The one symbol of the plug-in: `const CudaPlugin* lockstep_cuda_plugin()`.
inline constexpr const char* kCudaPluginSymbol = "lockstep_cuda_plugin";

}  // namespace lockstep::comm
