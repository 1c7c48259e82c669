// Elementary functions (docs/numerics.md, N4): IEEE multiply, add, fused multiply-add and divide only, so that every level gives the same
// bits; device/cuda/kernels/math.cuh has them too.

/// e^x = (1 + minus_one) * 2^exponent.
struct ExpParts {
  Floats minus_one;
  Ints exponent;
};

/// x = n ln 2 + r, and a polynomial in r.
LOCKSTEP_INLINE ExpParts exp_parts(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits
  const Floats shifted = fma(x, splat(1.44269504f), magic);
  const Floats n = sub(shifted, magic);
  const Floats r = fma(n, splat(-1.42860677e-6f), fma(n, splat(-0.693145752f), x));
  Floats p = splat(1.0f / 5040.0f);
  p = fma(p, r, splat(1.0f / 720.0f));
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  return {fma(mul(p, r), r, r), sub(bits(shifted), bits(magic))};
}

LOCKSTEP_INLINE Floats power_of_two(Ints exponent) { return from_bits(shift_left<23>(add(exponent, splat_int(127)))); }

/// e^x to about one unit in the last place. 2^n in two factors, so that subnormal results come out too.
LOCKSTEP_INLINE Floats exp_of(Floats x) {
  const ExpParts parts = exp_parts(max_of(splat(-104.0f), min_of(splat(89.0f), x)));  // NaN is the second operand and stays
  const Ints half = shift_right_signed<1>(parts.exponent);
  const Floats p = mul(add(parts.minus_one, splat(1.0f)), power_of_two(half));
  return mul(p, power_of_two(sub(parts.exponent, half)));
}

LOCKSTEP_INLINE Floats magnitude(Floats x) { return from_bits(bit_and(bits(x), splat_int(0x7FFFFFFF))); }

/// Lanes of `negative` where x has its sign bit set, those of `other` elsewhere.
LOCKSTEP_INLINE Floats by_sign(Floats x, Floats negative, Floats other) {
  const Ints mask = shift_right_signed<31>(bits(x));
  return from_bits(bit_xor(bits(other), bit_and(mask, bit_xor(bits(negative), bits(other)))));
}

/// tanh(x) = w / (w + 2) with the sign of x, w = e^(2 |x|) - 1 without cancellation: 2^n (e^r - 1) + (2^n - 1).
LOCKSTEP_INLINE Floats tanh_of(Floats x) {
  const ExpParts parts = exp_parts(min_of(splat(44.0f), mul(magnitude(x), splat(2.0f))));  // NaN stays; tanh(22) is 1
  const Floats power = power_of_two(parts.exponent);
  const Floats w = fma(power, parts.minus_one, sub(power, splat(1.0f)));
  const Ints sign = bit_and(bits(x), splat_int(static_cast<std::int32_t>(0x80000000u)));
  return from_bits(bit_xor(bits(div(w, add(w, splat(2.0f)))), sign));
}

/// x Phi(x), Phi the normal distribution. Phi(-a) = e^(-a^2 / 2) t Q(t) with t = 1 / (1 + 0.3 a); Q interpolates at the Chebyshev nodes of
/// its range. The rounding error of a^2 is carried on, so that the far tail is right, too.
LOCKSTEP_INLINE Floats gelu_of(Floats x) {
  const Floats a = min_of(splat(20.0f), magnitude(x));  // NaN is the second operand and stays; beyond 20, Phi(-a) is 0
  const Floats square = mul(a, a), rest = fma(a, a, sub(zero(), square));
  Floats e = exp_of(mul(square, splat(-0.5f)));
  e = fma(e, mul(rest, splat(-0.5f)), e);
  const Floats t = div(splat(1.0f), fma(a, splat(0.3f), splat(1.0f)));
  Floats q = splat(-0.0209560245f);
  q = fma(q, t, splat(0.114257455f));
  q = fma(q, t, splat(-0.23252441f));
  q = fma(q, t, splat(0.19755058f));
  q = fma(q, t, splat(-0.0842134804f));
  q = fma(q, t, splat(0.0987113863f));
  q = fma(q, t, splat(0.0775179043f));
  q = fma(q, t, splat(0.110418409f));
  q = fma(q, t, splat(0.119550429f));
  q = fma(q, t, splat(0.119687751f));
  const Floats below = mul(mul(e, t), q);
  return mul(x, by_sign(x, below, sub(splat(1.0f), below)));
}

/// The sigmoid of twice the argument of tanh, times x.
LOCKSTEP_INLINE Floats gelu_tanh_of(Floats x) {
  const Floats inner = fma(mul(mul(x, x), x), splat(0.044715f), x);
  return div(x, add(splat(1.0f), exp_of(mul(inner, splat(-1.59576912f)))));
}

template <Nonlinearity kFunction>
LOCKSTEP_INLINE Floats activation_of(Floats x) {
  if constexpr (kFunction == Nonlinearity::kSilu) return div(x, add(splat(1.0f), exp_of(sub(zero(), x))));
  if constexpr (kFunction == Nonlinearity::kGelu) return gelu_of(x);
  if constexpr (kFunction == Nonlinearity::kGeluTanh) return gelu_tanh_of(x);
  if constexpr (kFunction == Nonlinearity::kGeluQuick) return div(x, add(splat(1.0f), exp_of(mul(x, splat(-1.702f)))));
  return max_of(zero(), x);  // NaN and -0 are the second operand and stay
}
