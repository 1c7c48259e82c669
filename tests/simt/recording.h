#pragma once

#include <functional>

#include <cuda_runtime.h>

#include "device/cuda/error.h"

namespace lockstep::comm {

/// A recording of what `work` enqueues on `stream`, destroyed with the object.
class Recording {
 public:
  Recording(cudaStream_t stream, const std::function<void()>& work) {
    using device::cuda::check;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    work();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    const cudaError_t code = cudaGraphInstantiate(&recording_, graph, 0);
    cudaGraphDestroy(graph);
    check(code, "instantiating a graph");
  }
  ~Recording() { cudaGraphExecDestroy(recording_); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void replay(cudaStream_t stream) const { device::cuda::check(cudaGraphLaunch(recording_, stream), "launching a graph"); }

 private:
  cudaGraphExec_t recording_ = nullptr;
};

}  // namespace lockstep::comm
