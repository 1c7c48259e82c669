#pragma once

#include <stdexcept>
#include <string>

#include <cuda_runtime.h>

namespace lockstep::device::cuda {

/// A CUDA call failed. The message names what was done and what CUDA says.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& what)
      : std::runtime_error(what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

/// @throws CudaError unless `code` is cudaSuccess.
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(code, what);
}

}  // namespace lockstep::device::cuda
