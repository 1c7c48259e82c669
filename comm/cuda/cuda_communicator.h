#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include <cuda_runtime.h>

#include "comm/communicator.h"

namespace lockstep::comm {

struct CudaCommunicatorOptions {
  cudaStream_t stream = nullptr;  // that of the rank's device: all_reduce is ordered with its ops, and may be recorded into graphs
  int num_multiprocessors = 1;
  bool same_machine = true;    // all ranks can map each other's memory (CUDA IPC)
  bool fast = false;           // --reduction fast: ncclAllReduce, whose order of additions is NCCL's
  std::size_t max_values = 0;  // the largest `count` of an all_reduce
  std::size_t max_roots = 0;   // and the largest sum of TreeSum::roots_per_rank
  std::chrono::milliseconds deadline{120000};
  std::filesystem::path tuning;  // which transport for which size, as `lockstep bench comm` writes it; empty: built-in table
};

/// Ranks with a GPU each. all_reduce is about memory of the GPU: kernels over CUDA IPC for small sums on one machine, NCCL else. Everything
/// else goes through `host`, which must outlive it. Collective. @throws CommError, device::cuda::CudaError
std::unique_ptr<Communicator> make_cuda_communicator(Communicator& host, const CudaCommunicatorOptions& options);

}  // namespace lockstep::comm
