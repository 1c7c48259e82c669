#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "device/cuda/error.h"

namespace lockstep::device::cuda {

/// How one kind of memory is taken and given back.
struct OnDevice {
  static constexpr const char* kKind = " bytes of GPU memory for ";
  static cudaError_t allocate(void** data, std::size_t bytes) { return cudaMalloc(data, bytes); }
  static void release(void* data) { cudaFree(data); }
};
struct Pinned {
  static constexpr const char* kKind = " bytes of pinned memory for ";
  static cudaError_t allocate(void** data, std::size_t bytes) { return cudaHostAlloc(data, bytes, cudaHostAllocDefault); }
  static void release(void* data) { cudaFreeHost(data); }
};

/// Memory of one kind, freed with the object. Contents are undefined.
template <class Kind>
class Memory {
 public:
  Memory() = default;
  /// @param what for the message: "the KV cache". @throws CudaError with the size and `what`.
  Memory(std::size_t bytes, const std::string& what) : size_(bytes) {
    if (bytes == 0) return;
    const cudaError_t code = Kind::allocate(&data_, bytes);
    if (code != cudaSuccess) throw CudaError(code, "allocating " + std::to_string(bytes) + Kind::kKind + what);
  }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) Kind::release(data_);
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

/// Of the current CUDA device, 256-byte aligned.
using DeviceMemory = Memory<OnDevice>;
/// Of the host, which the GPU reads and writes directly.
using PinnedMemory = Memory<Pinned>;

}  // namespace lockstep::device::cuda
