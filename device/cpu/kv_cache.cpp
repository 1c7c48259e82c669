#include "device/cpu/kv_cache.h"

#include <stdexcept>
#include <string>

namespace lockstep::device::cpu {
namespace {

CacheType cache_type(const KvCacheSpec& spec) {
  switch (spec.quantised) {
    case KvQuantisation::kFloat8: return CacheType::kFloat8;
    case KvQuantisation::kInt8: return CacheType::kInt8;
    case KvQuantisation::kNone: break;
  }
  switch (spec.dtype) {
    case DType::kF32: return CacheType::kFloat32;
    case DType::kF16: return CacheType::kFloat16;
    case DType::kBF16: return CacheType::kBFloat16;
    default: break;
  }
  throw std::invalid_argument("the CPU device has no KV cache of type " + std::string(info(spec.dtype).name));
}

const KvCacheSpec& checked(const KvCacheSpec& spec) {
  if (spec.block_size == 0 || spec.block_size % kLanes != 0) {
    throw std::invalid_argument("the KV cache has blocks of a multiple of 16 tokens, not of " + std::to_string(spec.block_size));
  }
  return spec;
}

}  // namespace

CpuKvCache::CpuKvCache(const KvCacheSpec& spec)
    : spec_(checked(spec)), type_(cache_type(spec)), memory_(spec.num_blocks * spec.bytes_per_block() + 64) {}

CacheView CpuKvCache::layer(std::size_t layer) const {
  const std::size_t slot = spec_.place_of(layer).slot;
  const bool has_scales = spec_.quantised != KvQuantisation::kNone;
  const std::size_t elements = spec_.block_size * spec_.head_dim * (has_scales ? 1 : info(spec_.dtype).block_bytes);
  const std::size_t half = elements + (has_scales ? spec_.block_size * sizeof(float) : 0), block = 2 * half * spec_.num_kv_heads;
  return {memory_.data() + slot * spec_.num_blocks * block, block, 2 * half, half, elements, spec_.block_size, spec_.head_dim, type_};
}

}  // namespace lockstep::device::cpu
