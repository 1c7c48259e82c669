#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "device/cuda/error.h"

namespace lockstep::device::cuda {

/// Memory of the current CUDA device, freed with the object. 256-byte aligned; contents are undefined.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// @param what for the message: "the KV cache". @throws CudaError with the size and `what`.
  DeviceMemory(std::size_t bytes, const std::string& what) : size_(bytes) {
    if (bytes == 0) return;
    const cudaError_t code = cudaMalloc(&data_, bytes);
    if (code != cudaSuccess) throw CudaError(code, "allocating " + std::to_string(bytes) + " bytes of GPU memory for " + what);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Host memory that the GPU reads and writes directly, freed with the object.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(std::size_t bytes, const std::string& what) : size_(bytes) {
    if (bytes == 0) return;
    const cudaError_t code = cudaHostAlloc(&data_, bytes, cudaHostAllocDefault);
    if (code != cudaSuccess) throw CudaError(code, "allocating " + std::to_string(bytes) + " bytes of pinned memory for " + what);
  }
  PinnedMemory(PinnedMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedMemory() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep::device::cuda
