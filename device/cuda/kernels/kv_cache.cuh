#pragma once

#include "device/cuda/kernels/eight_bits.cuh"
#include "device/cuda/views.h"

/// The layout of the paged KV cache, and the kernel that fills it.
namespace lockstep::device::cuda {

/// As wide as a pointer: a view without padding has no words that happen to look like an address.
enum class CacheType : std::uint64_t { kFloat32, kFloat16, kBFloat16, kFloat8, kInt8 };

/// One layer of the cache: [block][KV head][keys, values][token of the block][head_dim]. A token's vector is padded with zeros to a
/// multiple of 16 bytes, so that a span of a head is whole vectors of 16 bytes. Slots that no token has filled hold anything. In the 8-bit
/// types the scales of the block's tokens, fp32, stand behind its keys, and behind its values.
struct CacheView {
  std::byte* data = nullptr;
  std::uint32_t block_size = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t vector_bytes = 0;
  CacheType type = CacheType::kFloat32;

  /// Keys of a head in a block; its values stand value_offset() bytes further on.
  __device__ std::byte* keys(std::uint32_t block, std::uint32_t kv_head) const {
    return data + (static_cast<std::size_t>(block) * num_kv_heads + kv_head) * 2 * value_offset();
  }
  __host__ __device__ std::size_t value_offset() const {
    const bool has_scales = type == CacheType::kFloat8 || type == CacheType::kInt8;
    return static_cast<std::size_t>(block_size) * (vector_bytes + (has_scales ? sizeof(float) : 0));
  }
  /// The scales behind the block's keys, or values.
  __device__ float* scales(std::byte* vectors) const {
    return reinterpret_cast<float*>(vectors + static_cast<std::size_t>(block_size) * vector_bytes);
  }
  __device__ const float* scales(const std::byte* vectors) const {
    return reinterpret_cast<const float*>(vectors + static_cast<std::size_t>(block_size) * vector_bytes);
  }
};

constexpr unsigned kAppendWarps = 4;

struct AppendArguments {
  float* qkv;
  std::size_t qkv_stride;
  const std::int32_t* positions;
  const std::uint32_t* sequence_of;
  const std::uint32_t* block_tables;
  std::uint32_t block_table_stride;
  HeadMap heads;
  RotaryView rotary;
  CacheView cache;
};

/// Hands each dim of a head, rotated, to `put`: pairs (i, i + half) as docs/numerics.md has it, what is behind them as it is.
template <class Put>
__device__ inline void rotate_head(const float* x, unsigned head_dim, const float* cosines, const float* sines, unsigned half,
                                   unsigned lane, const Put& put) {
  for (unsigned i = lane; i < half; i += 32) {
    const float first = x[i], second = x[i + half], cosine = cosines[i], sine = sines[i];
    put(i, fmaf(first, cosine, -(second * sine)));
    put(i + half, fmaf(second, cosine, first * sine));
  }
  for (unsigned i = 2 * half + lane; i < head_dim; i += 32) put(i, x[i]);
}

/// A warp puts a head into a slot of the cache. What it writes behind head_dim is zero.
template <class Element, class ForEach>
__device__ inline void store_vector(const CacheView& cache, std::byte* vectors, unsigned slot, unsigned lane, const ForEach& for_each) {
  Element* to = reinterpret_cast<Element*>(vectors + static_cast<std::size_t>(slot) * cache.vector_bytes);
  if constexpr (is_eight_bits<Element>) {
    unsigned largest = 0;  // magnitudes compare like their bits, and infinity and NaN are the largest
    for_each([&](unsigned, float value) { largest = max(largest, __float_as_uint(value) & 0x7FFFFFFFu); });
    const EightBitScale scale = scale_for<Element>(__uint_as_float(__reduce_max_sync(0xFFFFFFFFu, largest)));
    if (lane == 0) cache.scales(vectors)[slot] = scale.scale;
    for_each([&](unsigned dim, float value) { to[dim] = quantised<Element>(value, scale.inverse); });
    for (unsigned i = cache.head_dim + lane; i < cache.vector_bytes; i += 32) to[i] = Element{0};
  } else {
    for_each([&](unsigned dim, float value) { to[dim] = from_float<Element>(value); });
    for (unsigned i = cache.head_dim + lane; i < cache.vector_bytes / sizeof(Element); i += 32) to[i] = from_float<Element>(0.0f);
  }
}

/// Grid (tokens, heads / kAppendWarps), a warp a head: queries are rotated in place, keys rotated into the cache, values put there as they
/// are. Pads (position -1) are skipped. Bytes: 8 head_dim a query head, 4 head_dim + its size in the cache a key or value head; the rotary
/// row, 4 head_dim. Operations: 3 head_dim a query or key head, twice that into a cache of 8 bits.
template <class Element>
__global__ void __launch_bounds__(32 * kAppendWarps) rotate_and_append_heads(AppendArguments arguments) {
  const unsigned token = blockIdx.x, head = blockIdx.y * kAppendWarps + threadIdx.y, lane = threadIdx.x;
  const HeadMap& heads = arguments.heads;
  const CacheView& cache = arguments.cache;
  const std::int32_t position = arguments.positions[token];
  if (position < 0 || head >= heads.num_heads + 2 * heads.num_kv_heads) return;
  const bool is_query = head < heads.num_heads, is_value = head >= heads.num_heads + heads.num_kv_heads;
  float* x = arguments.qkv + token * arguments.qkv_stride + static_cast<std::size_t>(head) * heads.head_dim;
  const unsigned half = is_value ? 0 : arguments.rotary.half;
  const std::size_t rotary_row = (arguments.rotary.by_token != 0 ? token : static_cast<std::size_t>(position)) * half;
  const float* cosines = arguments.rotary.cosines + rotary_row;
  const float* sines = arguments.rotary.sines + rotary_row;
  if (is_query) {
    rotate_head(x, 2 * half, cosines, sines, half, lane, [x](unsigned dim, float value) { x[dim] = value; });
    return;
  }
  const unsigned kv_head = (head - heads.num_heads) % heads.num_kv_heads, slot = static_cast<unsigned>(position);
  const std::uint32_t* table =
      arguments.block_tables + static_cast<std::size_t>(arguments.sequence_of[token]) * arguments.block_table_stride;
  std::byte* vectors = cache.keys(table[slot / cache.block_size], kv_head) + (is_value ? cache.value_offset() : 0);
  store_vector<Element>(cache, vectors, slot % cache.block_size, lane,
                        [&](const auto& put) { rotate_head(x, heads.head_dim, cosines, sines, half, lane, put); });
}

}  // namespace lockstep::device::cuda
