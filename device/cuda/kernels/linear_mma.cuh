#pragma once

#include "device/cuda/kernels/linear_group.cuh"
#include "device/cuda/kernels/linear_layout.cuh"
#include "device/cuda/kernels/portable.h"

/// What the two tiles of the mma family share: weights are the M operand of mma.m16n8k16, tokens the N operand. A warp multiplies one unit
/// of weights (32 rows x 32 columns, see linear_layout.cuh) with kTiles tiles of 8 tokens at a time, and adds up the units of a slice in
/// ascending order from zero. An element of the sum has the same bits in both, and wherever it stands in the tile.
namespace lockstep::device::cuda {

struct MmaLinear {
  const unsigned char* weights = nullptr;  // [panels][units]
  const Slice* slices = nullptr;
  const std::uint16_t* in = nullptr;  // [num_tokens, in_stride] f16 or bf16
  float* out = nullptr;               // [roots, num_tokens, out_stride]: the first column of the product
  const float* bias = nullptr;        // [num_rows], or null
  std::size_t in_stride = 0;
  std::size_t out_stride = 0;
  std::uint32_t num_slices = 0;
  std::uint32_t num_units = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_rows = 0;
  Grouping grouping;
  bool vectors = false;  // leaves, `in` and its rows allow reads of 16 bytes
};

/// Walks over the units of the slices first, first + step, first + 2 step ...
class UnitWalk {
 public:
  __device__ UnitWalk(const MmaLinear& args, unsigned first, unsigned step)
      : slices_(args.slices), num_slices_(args.num_slices), slice_(first), step_(step) {
    enter();
  }
  __device__ bool valid() const { return slice_ < num_slices_; }
  __device__ unsigned unit() const { return unit_; }
  __device__ unsigned column() const { return column_; }
  __device__ unsigned end_column() const { return end_column_; }
  __device__ void next() {
    column_ += kUnitColumns;
    if (++unit_ < end_unit_) return;
    slice_ += step_;
    enter();
  }

 private:
  __device__ void enter() {
    if (!valid()) return;
    const Slice& slice = slices_[slice_];
    unit_ = slice.first_unit;
    end_unit_ = slice.end_unit;
    column_ = slice.first_column;
    end_column_ = slice.end_column;
  }

  const Slice* slices_;
  unsigned num_slices_, slice_, step_;
  unsigned unit_ = 0, end_unit_ = 0, column_ = 0, end_column_ = 0;
};

/// Begins the copy of a unit to shared memory, by one warp. Of 16-bit weights a lane copies what it will read itself.
template <DType kType>
__device__ inline void fetch_unit(unsigned char* stage, const unsigned char* unit, unsigned lane) {
  constexpr unsigned kVectors = unit_bytes(kType) / 16;
#pragma unroll
  for (unsigned i = 0; i < kVectors / 32; ++i) cp_async_16(stage + (i * 32 + lane) * 16, unit + (i * 32 + lane) * 16);
  if constexpr (kVectors % 32 != 0) {
    constexpr unsigned kDone = kVectors / 32 * 32;
    if (lane < kVectors % 32) cp_async_16(stage + (kDone + lane) * 16, unit + (kDone + lane) * 16);
  }
}

/// Begins the copy of 8 columns of a row of `in`, or of zeros where there is none (kNoRow) or the columns are not of the leaf.
__device__ inline void fetch_tokens(unsigned char* to, const MmaLinear& args, unsigned in_row, unsigned column, unsigned end_column) {
  const bool exists = in_row != kNoRow;
  const std::uint16_t* row = args.in + (exists ? in_row : 0) * args.in_stride;
  if (args.vectors) {
    const bool valid = exists && column < end_column;
    cp_async_16_or_zero(to, row + (valid ? column : 0), valid);
    return;
  }
  unsigned pairs[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned at = column + 2 * i;
    const unsigned low = exists && at < end_column ? row[at] : 0u;
    const unsigned high = exists && at + 1 < end_column ? row[at + 1] : 0u;
    pairs[i] = low | high << 16;
  }
  store_16(to, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
}

__device__ inline float float_of_half(unsigned bits) {
  __half_raw raw;
  raw.x = static_cast<unsigned short>(bits);
  return __half2float(__half(raw));
}

__device__ inline unsigned bfloat16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// x as a float, for an integer below 2^23 without the conversion unit: it is put behind the exponent of 2^23. Exact.
__device__ inline float small_float(unsigned x, float offset) { return __uint_as_float(0x4B000000u | x) - (8388608.0f + offset); }

/// Two nibbles (bits 0-3 and 4-7 of `pair`) expanded to bf16. The upper one is 16 times too large, and so meets a 16 times smaller scale:
/// the product of a scale and a quant is exact in fp32, so this changes nothing.
template <DType kType>
__device__ inline unsigned expand_nibbles(unsigned pair, float scale, float minimum) {
  constexpr float kOffset = kType == DType::kQ4_0 ? 8.0f : 0.0f;
  const float low = small_float(pair & 0x0Fu, kOffset), high = small_float(pair & 0xF0u, 16.0f * kOffset);
  if constexpr (kType == DType::kQ4_1) return bfloat16_pair(fmaf(low, scale, minimum), fmaf(high, scale * 0.0625f, minimum));
  return bfloat16_pair(low * scale, high * (scale * 0.0625f));
}

/// Four int8 values to two pairs of bf16.
__device__ inline void expand_bytes(unsigned bytes, float scale_low, float scale_high, unsigned& first, unsigned& second) {
  const unsigned biased = bytes ^ 0x80808080u;
  float values[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) values[i] = small_float(biased >> (8 * i) & 0xFFu, 128.0f);
  first = bfloat16_pair(values[0] * scale_low, values[1] * scale_low);
  second = bfloat16_pair(values[2] * scale_high, values[3] * scale_high);
}

/// A lane's part of a unit as operands of mma, [step][tile]. Block-quantised weights become bf16: dequantise() rounded to nearest even
/// (docs/numerics.md, N8).
template <DType kType>
__device__ inline void expand_unit(const unsigned char* unit, unsigned lane, unsigned (&a)[2][2][4]) {
  if constexpr (!is_block_quantised(kType)) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const uint4 v = load_16(unit + (i * 32 + lane) * 16);
      unsigned(&to)[4] = a[i / 2][i % 2];
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    return;
  }
  const unsigned char* header = unit + unit_quant_bytes(kType) + lane / 4 * (kType == DType::kQ4_1 ? 16 : 8);
  const uint2 scale_bits = *reinterpret_cast<const uint2*>(header);
  const float scales[4] = {float_of_half(scale_bits.x & 0xFFFFu), float_of_half(scale_bits.x >> 16), float_of_half(scale_bits.y & 0xFFFFu),
                           float_of_half(scale_bits.y >> 16)};
  if constexpr (kType == DType::kQ8_0) {
#pragma unroll
    for (unsigned tile = 0; tile < 2; ++tile) {
      const uint4 v = load_16(unit + (tile * 32 + lane) * 16);
      expand_bytes(v.x, scales[2 * tile], scales[2 * tile + 1], a[0][tile][0], a[0][tile][1]);
      expand_bytes(v.y, scales[2 * tile], scales[2 * tile + 1], a[0][tile][2], a[0][tile][3]);
      expand_bytes(v.z, scales[2 * tile], scales[2 * tile + 1], a[1][tile][0], a[1][tile][1]);
      expand_bytes(v.w, scales[2 * tile], scales[2 * tile + 1], a[1][tile][2], a[1][tile][3]);
    }
  } else if constexpr (is_block_quantised(kType)) {
    float minima[4] = {};
    if constexpr (kType == DType::kQ4_1) {
      const uint2 bits = *reinterpret_cast<const uint2*>(header + 8);
      minima[0] = float_of_half(bits.x & 0xFFFFu), minima[1] = float_of_half(bits.x >> 16);
      minima[2] = float_of_half(bits.y & 0xFFFFu), minima[3] = float_of_half(bits.y >> 16);
    }
    const uint4 v = load_16(unit + lane * 16);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned tile = i / 2, step = i % 2;
#pragma unroll
      for (unsigned reg = 0; reg < 4; ++reg) {
        const unsigned group = 2 * tile + reg % 2;
        a[step][tile][reg] = expand_nibbles<kType>(words[i] >> (8 * reg), scales[group], minima[group]);
      }
    }
  }
}

/// sums [tile of rows][tile of tokens] += a unit in shared memory times 8 kTiles tokens in shared memory, [token][32] x 16 bits.
template <DType kType, int kTiles>
__device__ inline void multiply_unit(const unsigned char* unit, const unsigned char* tokens, unsigned lane, float (&sums)[2][kTiles][4]) {
  unsigned a[2][2][4];
  expand_unit<kType>(unit, lane, a);
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
    const uint4 b = load_16(tokens + (n * 32 + lane) * 16);
#pragma unroll
    for (unsigned tile = 0; tile < 2; ++tile) {
      if constexpr (kType == DType::kF16) {
        mma_f16_16816(sums[tile][n], a[0][tile], b.x, b.y);
        mma_f16_16816(sums[tile][n], a[1][tile], b.z, b.w);
      } else {
        mma_bf16_16816(sums[tile][n], a[0][tile], b.x, b.y);
        mma_bf16_16816(sums[tile][n], a[1][tile], b.z, b.w);
      }
    }
  }
}

}  // namespace lockstep::device::cuda
