#pragma once

#include "device/cuda/kernels/math.cuh"

/// The 8-bit numbers of a quantised KV cache: a vector is its numbers and one scale.
namespace lockstep::device::cuda {

struct Float8 {  // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; at most 448
  std::uint8_t bits;
};
struct Int8 {
  std::int8_t value;
};

template <class Element>
constexpr bool is_eight_bits = std::is_same_v<Element, Float8> || std::is_same_v<Element, Int8>;
template <class Element>
constexpr float kLargestOf = std::is_same_v<Element, Float8> ? 448.0f : 127.0f;

/// number = scale * q, q = round(number * inverse).
struct EightBitScale {
  float scale;
  float inverse;
};

/// For a vector whose largest magnitude is `largest`. If that is not finite the scale is NaN, so that the fault shows.
template <class Element>
__device__ inline EightBitScale scale_for(float largest) {
  if (!(largest <= 3.40282347e38f)) return {__uint_as_float(0x7FC00000u), 0.0f};
  float inverse = largest > 0.0f ? kLargestOf<Element> / largest : 0.0f;
  if (!(inverse <= 3.40282347e38f)) inverse = 0.0f;  // a subnormal maximum
  return {largest / kLargestOf<Element>, inverse};
}

/// To the nearest, ties to even; x is within the range of the type, but for rounding.
template <class Element>
__device__ inline Element to_eight_bits(float x);
template <>
__device__ inline Int8 to_eight_bits<Int8>(float x) {
  return {static_cast<std::int8_t>(__float_as_uint(x + kRounder) - __float_as_uint(kRounder))};
}
template <>
__device__ inline Float8 to_eight_bits<Float8>(float x) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu;
  // Below 2^-6 the unit is 2^-9. Above, the mantissa is cut to 3 bits, and 120 is the difference of the biases.
  const unsigned low = __float_as_uint(__uint_as_float(magnitude) * 512.0f + 8388608.0f) - __float_as_uint(8388608.0f);
  const unsigned high = ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  const unsigned code = magnitude < 0x3C800000u ? low : min(high, 0x7Eu);
  return {static_cast<std::uint8_t>(sign | code)};
}
template <class Element>
__device__ inline Element quantised(float x, float inverse) {
  return to_eight_bits<Element>(inverse != 0.0f ? x * inverse : 0.0f);  // NaN * 0 is no number
}

__device__ inline float from_eight_bits(unsigned byte, const Int8*) { return static_cast<float>(static_cast<std::int8_t>(byte)); }
__device__ inline float from_eight_bits(unsigned byte, const Float8*) {
  return __uint_as_float((byte & 0x80u) << 24 | (byte & 0x7Fu) << 20) * 0x1p120f;  // the bias, and subnormal numbers, by a multiplication
}

/// Four numbers of a word, times their scale.
template <class Element>
__device__ inline void expand_four(unsigned word, float scale, const Element* type, float* to) {
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) to[i] = from_eight_bits(word >> (8 * i) & 0xFFu, type) * scale;
}

}  // namespace lockstep::device::cuda
