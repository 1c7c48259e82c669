#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <cuda_runtime.h>

#include "comm/communicator.h"
#include "comm/cuda/tuning.h"

namespace lockstep::comm {

struct CudaCommunicatorOptions {
  cudaStream_t stream = nullptr;  // that of the rank's device: all_reduce is ordered with its ops, and may be recorded into graphs
  int num_multiprocessors = 1;
  bool same_machine = true;                        // all ranks can map each other's memory (CUDA IPC)
  bool fast = false;                               // --reduction fast: ncclAllReduce, whose order of additions is NCCL's
  bool share_gpu = false;                          // two ranks may have the same GPU: slow, and NCCL refuses it
  std::size_t max_values = 0;                      // the largest `count` of an all_reduce; 0: unknown
  std::size_t max_roots = 0;                       // and the largest sum of TreeSum::roots_per_rank; 0: unknown
  std::size_t slot_bytes = std::size_t{64} << 10;  // of a block of the kernels over mapped memory; each holds two
  std::chrono::milliseconds deadline{120000};
  std::filesystem::path tuning;  // which transport for which size (comm/cuda/tuning.h), as `lockstep bench comm` writes it; empty: built-in
  std::optional<cuda::TransportTable> table;  // in place of the file: to measure a transport
  /// Destroys the graphs that all_reduce was recorded into: NCCL waits for that when it ends. Called by the rank's thread, before this
  /// object leaves and when the group has failed.
  std::function<void()> forget_recordings;
};

/// Ranks with a GPU each. all_reduce is about memory of the GPU, and only enqueues. It may be recorded into graphs, which are
/// of no use when this object is gone.
class CudaCommunicator : public Communicator {
 public:
  /// To be called again and again while the host waits for the GPU, with the time it has waited so far: throws CommError when the group can
  /// not go on, or at the deadline, and lets waiting kernels leave. Takes some microseconds.
  virtual void waiting(std::chrono::steady_clock::duration so_far) = 0;
  /// What is in use: not what was asked for where ranks can not map each other's memory.
  virtual const cuda::TransportTable& table() const = 0;
  /// "CUDA IPC, one_shot from 0, two_shot from 1048576 bytes": what a report shows.
  virtual std::string description() const = 0;
};

/// Kernels over CUDA IPC for small sums on one machine, NCCL else. Everything but all_reduce goes through `host`, which must outlive it.
/// The current device of the thread is the rank's. Collective. @throws CommError, device::cuda::CudaError
std::unique_ptr<CudaCommunicator> make_cuda_communicator(Communicator& host, const CudaCommunicatorOptions& options);

}  // namespace lockstep::comm
