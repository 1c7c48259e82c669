#include <cstring>

#include <fmt/format.h>

#include "simt/runtime.h"

/// Copies and fills.
namespace simt {

namespace {

/// The direction that the pointers show; `declared` must be it, or cudaMemcpyDefault. Any other value is an error that is noted.
cudaError_t direction_of(void* to, const void* from, std::size_t bytes, cudaMemcpyKind declared, cudaMemcpyKind& direction) {
  const bool to_device = is_device_space(to);
  const bool from_device = is_device_space(from);
  direction = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                        : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (declared != cudaMemcpyDefault && declared != direction) {
    return note(cudaErrorInvalidMemcpyDirection, "a copy's direction is not that of its pointers");
  }
  if ((to_device && !is_device_range(to, bytes)) || (from_device && !is_device_range(from, bytes))) {
    return note(cudaErrorInvalidValue, fmt::format("a copy of {} bytes leaves its allocation", bytes));
  }
  return cudaSuccess;
}

void count_copy(cudaMemcpyKind direction) {
  LiveCounters& live = live_counters();
  if (direction == cudaMemcpyHostToDevice) ++live.host_to_device;
  if (direction == cudaMemcpyDeviceToHost) ++live.device_to_host;
  if (direction == cudaMemcpyDeviceToDevice) ++live.device_to_device;
}

MakeOperation copy_operation(void* to, std::shared_ptr<const void> from, std::size_t bytes, cudaMemcpyKind direction) {
  return call_operation(fmt::format("a copy of {} bytes", bytes), [=] {
    count_copy(direction);
    std::memmove(to, from.get(), bytes);
    return std::string();
  });
}

std::shared_ptr<const void> borrowed(const void* pointer) {
  return {pointer, [](const void*) {}};
}

}  // namespace

}  // namespace simt

using namespace simt;  // what follows implements C functions of CUDA

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  SIMT_MAY_FAIL(cudaMemcpy, cudaErrorInvalidValue);
  cudaMemcpyKind direction{};
  if (const cudaError_t code = refuse_wait_in_capture(context(), "cudaMemcpy"); code != cudaSuccess) return code;
  if (const cudaError_t code = direction_of(to, from, bytes, kind, direction); code != cudaSuccess) return code;
  if (const cudaError_t code = wait_for_blocking_streams("cudaMemcpy"); code != cudaSuccess) return code;
  ++live_counters().synchronisations;
  count_copy(direction);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaMemcpyAsync, cudaErrorInvalidValue);
  cudaMemcpyKind direction{};
  if (const cudaError_t code = direction_of(to, from, bytes, kind, direction); code != cudaSuccess) return code;
  const bool to_host = direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyHostToHost;
  const bool from_host = direction == cudaMemcpyHostToDevice || direction == cudaMemcpyHostToHost;
  const bool captured = !is_default(stream) && stream->capture != nullptr;
  std::shared_ptr<const void> source = borrowed(from);
  if (from_host && !captured && !pinned_allocation(from)) {  // staged before the call returns
    ++live_counters().pageable_copies;
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    source = std::shared_ptr<const void>(staged, staged->data());
  }
  const cudaError_t code = enqueue(stream, "a copy", copy_operation(to, source, bytes, direction));
  if (code == cudaSuccess && to_host && !captured && !pinned_allocation(to)) {  // complete when the call returns
    ++live_counters().pageable_copies;
    return stream->context->wait([&] { return stream->queue.empty(); }, "a copy to pageable memory");
  }
  return code;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                              std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t code =
        cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  SIMT_MAY_FAIL(cudaMemset, cudaErrorInvalidValue);
  if (!is_device_range(to, bytes)) return note(cudaErrorInvalidValue, fmt::format("cudaMemset of {} bytes leaves its allocation", bytes));
  if (const cudaError_t code = refuse_wait_in_capture(context(), "cudaMemset"); code != cudaSuccess) return code;
  if (const cudaError_t code = wait_for_blocking_streams("cudaMemset"); code != cudaSuccess) return code;
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaMemsetAsync, cudaErrorInvalidValue);
  if (!is_device_range(to, bytes)) return note(cudaErrorInvalidValue, fmt::format("cudaMemset of {} bytes leaves its allocation", bytes));
  return enqueue(stream, "cudaMemsetAsync", call_operation(fmt::format("cudaMemsetAsync of {} bytes", bytes), [=] {
                   std::memset(to, value, bytes);
                   return std::string();
                 }));
}

}  // extern "C"
