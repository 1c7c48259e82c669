#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "simt/runtime.h"

/// Devices and their properties, attributes of kernels, names of errors.
using namespace simt;  // what follows implements C functions of CUDA

namespace {

constexpr int kSharedOptin = static_cast<int>(kMaxShared);
constexpr int kDefaultShared = 48 * 1024;

struct KnownError {
  cudaError_t code;
  const char* name;
  const char* text;
};

constexpr std::array kErrors = {
    KnownError{cudaSuccess, "cudaSuccess", "no error"},
    KnownError{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    KnownError{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    KnownError{cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    KnownError{cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    KnownError{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    KnownError{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    KnownError{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    KnownError{cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    KnownError{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    KnownError{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    KnownError{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    KnownError{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    KnownError{cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    KnownError{cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    KnownError{cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    KnownError{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    KnownError{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    KnownError{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
               "operation failed due to a previous error during capture"},
    KnownError{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "unjoined work in a capturing stream"},
    KnownError{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
               "dependency created on uncaptured work in another stream"},
    KnownError{cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    KnownError{cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
};

const KnownError& known_error(cudaError_t code) {
  static constexpr KnownError unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* found = std::find_if(kErrors.begin(), kErrors.end(), [=](const KnownError& error) { return error.code == code; });
  return found != kErrors.end() ? *found : unknown;
}

cudaError_t check_device(int device) {
  if (config().device_count == 0) return note(cudaErrorNoDevice);
  return device >= 0 && device < config().device_count ? cudaSuccess : note(cudaErrorInvalidDevice);
}

/// What cudaFuncSetAttribute allowed, by kernel. Of this thread: a rank.
struct DynamicShared {
  const void* function;
  int bytes;
};
thread_local std::vector<DynamicShared> dynamic_shared_limits;

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t code) { return known_error(code).text; }
const char* cudaGetErrorName(cudaError_t code) { return known_error(code).name; }

cudaError_t cudaGetLastError() {
  Context& mine = context();
  const cudaError_t code = mine.sticky != cudaSuccess ? mine.sticky : mine.last;
  mine.last = cudaSuccess;
  return code;
}

cudaError_t cudaPeekAtLastError() {
  const Context& mine = context();
  return mine.sticky != cudaSuccess ? mine.sticky : mine.last;
}

cudaError_t cudaGetDeviceCount(int* count) {
  SIMT_MAY_FAIL(cudaGetDeviceCount, cudaErrorInsufficientDriver);
  *count = config().device_count;
  return *count > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  SIMT_MAY_FAIL(cudaSetDevice, cudaErrorInvalidDevice);
  const cudaError_t code = check_device(device);
  if (code == cudaSuccess) context().device = device;
  return code;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return check_device(device); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = context().device;
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() {
  Context& mine = context();
  const std::lock_guard lock(mine.mutex);
  mine.lose(cudaSuccess, "");
  mine.last = mine.sticky = cudaSuccess;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  SIMT_MAY_FAIL(cudaDeviceGetAttribute, cudaErrorInvalidValue);
  if (const cudaError_t code = check_device(device); code != cudaSuccess) return code;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = config().multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kDefaultShared; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7FFFFFFF; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  SIMT_MAY_FAIL(cudaGetDeviceProperties, cudaErrorInvalidValue);
  if (const cudaError_t code = check_device(device); code != cudaSuccess) return code;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = 9;
  properties->multiProcessorCount = config().multiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = kDefaultShared;
  properties->sharedMemPerBlockOptin = kSharedOptin;
  properties->sharedMemPerMultiprocessor = 228 * 1024;
  properties->totalGlobalMem = config().memory_bytes;
  properties->unifiedAddressing = 1;
  properties->pciBusID = device + 1;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", device + 1);
  return check_device(device);
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  SIMT_MAY_FAIL(cudaDeviceCanAccessPeer, cudaErrorInvalidDevice);
  if (const cudaError_t code = check_device(std::max(device, peer)); code != cudaSuccess) return code;
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  SIMT_MAY_FAIL(cudaDeviceEnablePeerAccess, cudaErrorInvalidDevice);
  return check_device(peer);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) { return check_device(peer); }

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  SIMT_MAY_FAIL(cudaFuncSetAttribute, cudaErrorInvalidValue);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > kSharedOptin) return note(cudaErrorInvalidValue, "more dynamic shared memory than a block can have");
  for (DynamicShared& limit : dynamic_shared_limits) {
    if (limit.function == function) return limit.bytes = value, cudaSuccess;
  }
  dynamic_shared_limits.push_back({function, value});
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = kDefaultShared;
  for (const DynamicShared& limit : dynamic_shared_limits) {
    if (limit.function == function) attributes->maxDynamicSharedSizeBytes = std::max(kDefaultShared, limit.bytes);
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size, std::size_t shared_bytes,
                                                                   unsigned) {
  if (block_size <= 0 || block_size > 1024) return note(cudaErrorInvalidValue);
  *blocks = std::min(
      {32, 2048 / ((block_size + 31) / 32 * 32), static_cast<int>(static_cast<std::size_t>(kSharedOptin) / (shared_bytes + 1024))});
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size, std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

}  // extern "C"
