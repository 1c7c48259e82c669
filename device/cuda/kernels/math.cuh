#pragma once

#include "device/cuda/kernels/portable.h"
#include "device/device.h"

/// Elementary functions and the three types of activations. Everything is IEEE multiply, add, fused multiply-add, divide and square root.
namespace lockstep::device::cuda {

/// exp_parts and exp2_of split x into an integer n and a small rest: adding this, 1.5 * 2^23, rounds to an integer, which then stands in
/// the low bits.
constexpr float kRounder = 12582912.0f;

/// 2^exponent * x, for a sum of exponents that fits.
__device__ inline float power_of_two(int exponent) { return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23); }

/// e^x = (1 + minus_one) * 2^exponent.
struct ExpParts {
  float minus_one;
  int exponent;
};

/// The polynomial of docs/numerics.md N4, with the bits of device/cpu/functions.inl.
__device__ inline ExpParts exp_parts(float x) {
  const float shifted = fmaf(x, 1.44269504f, kRounder);
  const float n = shifted - kRounder;
  const float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x));
  float p = 1.0f / 5040.0f;
  p = fmaf(p, r, 1.0f / 720.0f);
  p = fmaf(p, r, 1.0f / 120.0f);
  p = fmaf(p, r, 1.0f / 24.0f);
  p = fmaf(p, r, 1.0f / 6.0f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p * r, r, r);
  return {p, static_cast<int>(__float_as_uint(shifted) - __float_as_uint(kRounder))};
}

__device__ inline float exp_of(float x) {
  x = 89.0f < x ? 89.0f : x;  // NaN stays
  x = -104.0f > x ? -104.0f : x;
  const ExpParts parts = exp_parts(x);
  const int half = parts.exponent >> 1;
  const float p = (parts.minus_one + 1.0f) * power_of_two(half);  // in two factors, so that subnormal results come out too
  return p * power_of_two(parts.exponent - half);
}

/// 2^x for x <= 0 to about 2 units in the last place; 0 below -126. For the 16-bit family of attention, whose results are rounded to 16
/// bits.
__device__ inline float exp2_of(float x) {
  const float shifted = x + kRounder;
  const float r = x - (shifted - kRounder);  // exact, in [-0.5, 0.5]
  float p = 1.535336188e-4f;
  p = fmaf(p, r, 1.339887440e-3f);
  p = fmaf(p, r, 9.618437357e-3f);
  p = fmaf(p, r, 5.550332471e-2f);
  p = fmaf(p, r, 2.402264791e-1f);
  p = fmaf(p, r, 6.931472028e-1f);
  p = fmaf(p, r, 1.0f);
  const int exponent = static_cast<int>(__float_as_uint(shifted) - __float_as_uint(kRounder));
  return x < -126.0f ? 0.0f : p * power_of_two(exponent);
}

__device__ inline float silu(float x) { return x / (1.0f + exp_of(0.0f - x)); }

/// x Phi(x), with Phi(-a) = e^(-a^2 / 2) t Q(t), t = 1 / (1 + 0.3 a): the Q of docs/numerics.md N4, with the bits of
/// device/cpu/functions.inl.
__device__ inline float gelu(float x) {
  float a = fabsf(x);
  a = 20.0f < a ? 20.0f : a;  // NaN stays; beyond it Phi(-a) is 0
  const float square = a * a, rest = fmaf(a, a, 0.0f - square);
  float e = exp_of(square * -0.5f);
  e = fmaf(e, rest * -0.5f, e);
  const float t = 1.0f / fmaf(a, 0.3f, 1.0f);
  float q = -0.0209560245f;
  q = fmaf(q, t, 0.114257455f);
  q = fmaf(q, t, -0.23252441f);
  q = fmaf(q, t, 0.19755058f);
  q = fmaf(q, t, -0.0842134804f);
  q = fmaf(q, t, 0.0987113863f);
  q = fmaf(q, t, 0.0775179043f);
  q = fmaf(q, t, 0.110418409f);
  q = fmaf(q, t, 0.119550429f);
  q = fmaf(q, t, 0.119687751f);
  const float below = (e * t) * q;
  return x * (__float_as_uint(x) >> 31 != 0 ? below : 1.0f - below);
}

/// The sigmoid of twice the argument of tanh, times x.
__device__ inline float gelu_tanh(float x) {
  const float inner = fmaf((x * x) * x, 0.044715f, x);
  return x / (1.0f + exp_of(inner * -1.59576912f));
}

/// tanh(x) = w / (w + 2) with the sign of x, w = e^(2 |x|) - 1: see device/cpu/functions.inl.
__device__ inline float tanh_of(float x) {
  float a = fabsf(x) * 2.0f;
  a = 44.0f < a ? 44.0f : a;  // NaN stays; tanh(22) is 1
  const ExpParts parts = exp_parts(a);
  const float power = power_of_two(parts.exponent);
  const float w = fmaf(power, parts.minus_one, power - 1.0f);
  return __uint_as_float(__float_as_uint(w / (w + 2.0f)) ^ (__float_as_uint(x) & 0x80000000u));
}

__device__ inline float gelu_quick(float x) { return x / (1.0f + exp_of(x * -1.702f)); }

template <Nonlinearity kFunction>
__device__ inline float activation_of(float x) {
  if constexpr (kFunction == Nonlinearity::kSilu) return silu(x);
  if constexpr (kFunction == Nonlinearity::kGelu) return gelu(x);
  if constexpr (kFunction == Nonlinearity::kGeluTanh) return gelu_tanh(x);
  if constexpr (kFunction == Nonlinearity::kGeluQuick) return gelu_quick(x);
  return 0.0f > x ? 0.0f : x;  // NaN and -0 stay
}

// To the nearest, ties to even; and back, which is exact.
template <class Element>
__device__ inline Element from_float(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class To, class From>
__device__ inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

/// Two values side by side, `low` at the lower address.
template <class Element>
__device__ inline unsigned pack_two(float low, float high);
template <>
__device__ inline unsigned pack_two<__nv_bfloat16>(float low, float high) {
  return bits_as<unsigned>(__floats2bfloat162_rn(low, high));
}
template <>
__device__ inline unsigned pack_two<__half>(float low, float high) {
  return bits_as<unsigned>(__floats2half2_rn(low, high));
}

__device__ inline float low_half(unsigned pair, const __nv_bfloat16*) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(unsigned pair, const __nv_bfloat16*) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ inline float low_half(unsigned pair, const __half*) { return __low2float(bits_as<__half2>(pair)); }
__device__ inline float high_half(unsigned pair, const __half*) { return __high2float(bits_as<__half2>(pair)); }

}  // namespace lockstep::device::cuda
