#pragma once

#include <memory>

#include "device/cuda/memory.h"
#include "device/cuda/views.h"

/// The paged KV cache in device memory, and the kernels that write and read it.
namespace lockstep::device::cuda {

class CudaKvCache final : public KvCache {
 public:
  /// @throws std::invalid_argument for a type or size that the kernels do not have, CudaError where memory is short.
  explicit CudaKvCache(const KvCacheSpec& spec);
  const KvCacheSpec& spec() const override { return spec_; }
  void* layer(std::size_t layer) const;

 private:
  KvCacheSpec spec_;
  DeviceMemory memory_;
};

/// Scratch that `attention` needs for any step within the limits.
std::size_t attention_scratch_bytes(const HeadMap& heads, const StepLimits& limits, std::size_t block_size, int num_multiprocessors);

/// See Device::rotate_and_append. qkv is kFloat32.
void rotate_and_append(const Launch& launch, Rows qkv, const StepView& step, const HeadMap& heads, const RotaryView& rotary,
                       const CudaKvCache& cache, std::size_t layer);

/// See Device::attention. With out kFloat32 it is the exact family: the bits of the CPU device. With a 16-bit `out` queries are rounded to
/// that type and the products go through mma. Decode (one token a sequence) spreads the spans of a sequence over blocks; prefill walks over
/// them: the same bits. `scratch` has attention_scratch_bytes; it must be zero before the first call, and is kept for the next ones: the
/// counters at its beginning, two words for each multiprocessor, are left zero.
void attention(const Launch& launch, Rows qkv, const StepView& step, const HeadMap& heads, float scale, std::uint32_t window,
               const CudaKvCache& cache, std::size_t layer, void* scratch, Rows out, const ScoreBend& bend = {},
               const float* sinks = nullptr);

}  // namespace lockstep::device::cuda
