#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/memory.h"
#include "device/device.h"

namespace lockstep::device::cpu {

/// The paged KV cache in host memory, as the kernels read it (CacheView).
class CpuKvCache final : public KvCache {
 public:
  /// @throws std::invalid_argument for a type or block size that the kernels do not have.
  explicit CpuKvCache(const KvCacheSpec& spec);
  const KvCacheSpec& spec() const override { return spec_; }
  CacheView layer(std::size_t layer) const;

 private:
  KvCacheSpec spec_;
  CacheType type_;
  HugeMemory memory_;  // 64 bytes longer: the last values are read as whole vectors
};

}  // namespace lockstep::device::cpu
