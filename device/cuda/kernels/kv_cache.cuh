#pragma once

#include "device/cuda/kernels/math.cuh"
#include "device/cuda/views.h"

/// The layout of the paged KV cache, and the kernel that fills it.
namespace lockstep::device::cuda {

enum class CacheType : std::uint8_t { kFloat32, kFloat16, kBFloat16 };

/// One layer of the cache: [block][KV head][keys, values][token of the block][head_dim]. A token's vector is padded with zeros to a
/// multiple of 16 bytes, so that a span of a head is whole vectors of 16 bytes. Slots that no token has filled hold anything.
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
  __device__ std::size_t value_offset() const { return static_cast<std::size_t>(block_size) * vector_bytes; }
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

/// Grid (tokens, heads / kAppendWarps), a warp a head: queries are rotated in place, keys rotated into the cache, values put there as they
/// are. Pads (position -1) are skipped. Bytes: 8 head_dim a query head, 4 head_dim + its size in the cache a key or value head; the rotary
/// row, 4 head_dim. Operations: 3 head_dim a query or key head.
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
  const std::size_t rotary_row = static_cast<std::size_t>(position) * half;
  const float* cosines = arguments.rotary.cosines + rotary_row;
  const float* sines = arguments.rotary.sines + rotary_row;
  if (is_query) {
    rotate_head(x, 2 * half, cosines, sines, half, lane, [x](unsigned dim, float value) { x[dim] = value; });
    return;
  }
  const unsigned kv_head = (head - heads.num_heads) % heads.num_kv_heads, slot = static_cast<unsigned>(position);
  const std::uint32_t* table =
      arguments.block_tables + static_cast<std::size_t>(arguments.sequence_of[token]) * arguments.block_table_stride;
  std::byte* vector = cache.keys(table[slot / cache.block_size], kv_head) + (is_value ? cache.value_offset() : 0) +
                      static_cast<std::size_t>(slot % cache.block_size) * cache.vector_bytes;
  Element* to = reinterpret_cast<Element*>(vector);
  rotate_head(x, heads.head_dim, cosines, sines, half, lane, [to](unsigned dim, float value) { to[dim] = from_float<Element>(value); });
  for (unsigned i = heads.head_dim + lane; i < cache.vector_bytes / sizeof(Element); i += 32) to[i] = from_float<Element>(0.0f);
}

}  // namespace lockstep::device::cuda
