#include <stdexcept>

#include "device/cuda/cache_view.h"
#include "device/cuda/error.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kLargestHeadDim = 256;

CacheType cache_type(const KvCacheSpec& spec) {
  if (spec.quantised == KvQuantisation::kFloat8) return CacheType::kFloat8;
  if (spec.quantised == KvQuantisation::kInt8) return CacheType::kInt8;
  switch (spec.dtype) {
    case DType::kF32: return CacheType::kFloat32;
    case DType::kF16: return CacheType::kFloat16;
    case DType::kBF16: return CacheType::kBFloat16;
    default: break;
  }
  throw std::invalid_argument("the CUDA device has no KV cache of type " + std::string(info(spec.dtype).name));
}

std::size_t vector_bytes(const KvCacheSpec& spec) {
  const std::size_t element = spec.quantised == KvQuantisation::kNone ? info(spec.dtype).block_bytes : 1;
  return (spec.head_dim * element + 15) / 16 * 16;
}

/// Without the address.
CacheView layout_of(const KvCacheSpec& spec) {
  CacheView view;
  view.block_size = static_cast<std::uint32_t>(spec.block_size);
  view.num_kv_heads = static_cast<std::uint32_t>(spec.num_kv_heads);
  view.head_dim = static_cast<std::uint32_t>(spec.head_dim);
  view.vector_bytes = static_cast<std::uint32_t>(vector_bytes(spec));
  view.type = cache_type(spec);
  return view;
}

std::size_t layer_bytes(const KvCacheSpec& spec) { return spec.num_blocks * spec.num_kv_heads * 2 * layout_of(spec).value_offset(); }

const KvCacheSpec& checked(const KvCacheSpec& spec) {
  (void)cache_type(spec);
  if (spec.block_size == 0 || spec.block_size % 16 != 0) {
    throw std::invalid_argument("the KV cache has blocks of a multiple of 16 tokens, not of " + std::to_string(spec.block_size));
  }
  if (spec.head_dim == 0 || spec.head_dim > kLargestHeadDim) {
    throw std::invalid_argument("the CUDA device has attention heads of 1 to " + std::to_string(kLargestHeadDim) + " dims, not of " +
                                std::to_string(spec.head_dim));
  }
  return spec;
}

}  // namespace

CudaKvCache::CudaKvCache(const KvCacheSpec& spec) : spec_(checked(spec)), memory_(spec.num_slots() * layer_bytes(spec), "the KV cache") {}

void* CudaKvCache::layer(std::size_t layer) const { return memory_.as<std::byte>() + spec_.place_of(layer).slot * layer_bytes(spec_); }

CacheView view_of(const CudaKvCache& cache, std::size_t layer) {
  CacheView view = layout_of(cache.spec());
  view.data = static_cast<std::byte*>(cache.layer(layer));
  return view;
}

void rotate_and_append(const Launch& where, Rows qkv, const StepView& step, const HeadMap& heads, const RotaryView& rotary,
                       const CudaKvCache& cache, std::size_t layer) {
  if (step.num_tokens == 0) return;
  const CacheView view = view_of(cache, layer);
  const AppendArguments arguments{static_cast<float*>(qkv.data),
                                  qkv.stride,
                                  step.positions,
                                  step.sequence_of,
                                  step.block_tables,
                                  step.block_table_stride,
                                  heads,
                                  rotary,
                                  view};
  const unsigned all_heads = heads.num_heads + 2 * heads.num_kv_heads;
  const dim3 grid(step.num_tokens, (all_heads + kAppendWarps - 1) / kAppendWarps), block(32, kAppendWarps);
  const auto run = [&](auto kernel) {
    check(launch(kernel, grid, block, 0, where.stream, arguments), "launching rotate_and_append_heads");
  };
  switch (view.type) {
    case CacheType::kFloat32: return run(rotate_and_append_heads<float>);
    case CacheType::kFloat16: return run(rotate_and_append_heads<__half>);
    case CacheType::kBFloat16: return run(rotate_and_append_heads<__nv_bfloat16>);
    case CacheType::kFloat8: return run(rotate_and_append_heads<Float8>);
    case CacheType::kInt8: return run(rotate_and_append_heads<Int8>);
  }
}

}  // namespace lockstep::device::cuda
