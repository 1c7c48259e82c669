// The elements of the KV cache: how they are read, and how a vector is rounded to 8 bits (docs/numerics.md, N7). The bits are those of
// device/cuda/kernels/eight_bits.cuh.

template <CacheType kType>
constexpr bool kHasScales = kType == CacheType::kFloat8 || kType == CacheType::kInt8;
template <CacheType kType>
constexpr std::size_t kElementBytes = kHasScales<kType>              ? 1
                                      : kType == CacheType::kFloat32 ? 4
                                                                     : 2;
/// What load_elements leaves out: load_float8 gives 2^-8 of the number. Both factors are exact, so that the product is rounded once.
template <CacheType kType>
constexpr float kScaleUnit = kType == CacheType::kFloat8 ? 256.0f : 1.0f;
template <CacheType kType>
constexpr float kLargest = kType == CacheType::kFloat8 ? 448.0f : 127.0f;

/// 16 elements, without their scale.
template <CacheType kType>
LOCKSTEP_INLINE Floats load_elements(const std::byte* p, std::size_t element) {
  if constexpr (kType == CacheType::kFloat32) return load_weights<DType::kF32>(p, element);
  if constexpr (kType == CacheType::kFloat16) return load_weights<DType::kF16>(p, element);
  if constexpr (kType == CacheType::kBFloat16) return load_weights<DType::kBF16>(p, element);
  if constexpr (kType == CacheType::kFloat8) return load_float8(p + element);
  if constexpr (kType == CacheType::kInt8) return to_floats(load_i8(p + element));
}

/// The e4m3 codes of 16 numbers of at most 448 (and a rounding more), to the nearest, ties to even.
LOCKSTEP_INLINE Ints to_float8(Floats x) {
  const Ints b = bits(x), magnitude_bits = bit_and(b, splat_int(0x7FFFFFFF));
  // Below 2^-6 the unit is 2^-9: an addition rounds to it. Above, the mantissa is cut to 3 bits, and 120 is the difference of the biases.
  const Floats shift = splat(8388608.0f);
  const Ints low = sub(bits(fma(from_bits(magnitude_bits), splat(512.0f), shift)), bits(shift));
  const Ints odd = bit_and(shift_right<20>(magnitude_bits), splat_int(1));
  const Ints high = sub(shift_right<20>(add(add(magnitude_bits, splat_int(0x7FFFF)), odd)), splat_int(120 << 3));
  const Ints is_low = shift_right_signed<31>(sub(magnitude_bits, splat_int(0x3C800000)));
  const Ints code = bit_xor(high, bit_and(is_low, bit_xor(high, low)));
  return add(code, bit_and(shift_right<24>(b), splat_int(0x80)));
}

/// number = scale * q, q = round(number * inverse).
struct EightBitScale {
  float scale, inverse;
};

/// If a number is not finite the scale is NaN, so that the fault shows.
template <CacheType kType>
LOCKSTEP_INLINE EightBitScale scale_for(const float* x, std::size_t count) {
  Ints largest = splat_int(0);  // magnitudes compare like their bits, and infinity and NaN are the largest
  for (std::size_t i = 0; i < count; i += 16) {
    largest = max_int(largest, bit_and(bits(load_first(x + i, lanes_left(count, i))), splat_int(0x7FFFFFFF)));
  }
  const float maximum = __builtin_bit_cast(float, max_lane(largest));
  if (!(maximum <= 3.40282347e38f)) return {__builtin_nanf(""), 0.0f};
  float inverse = maximum > 0.0f ? kLargest<kType> / maximum : 0.0f;
  if (!(inverse <= 3.40282347e38f)) inverse = 0.0f;  // a subnormal maximum
  return {maximum / kLargest<kType>, inverse};
}

/// `count` <= 16 codes of the numbers at x.
template <CacheType kType>
LOCKSTEP_INLINE void round_elements(const float* x, std::size_t count, float inverse, std::int8_t* codes) {
  if (inverse == 0.0f) return store_low8(codes, splat_int(0));  // NaN * 0 is no number
  const Floats scaled = mul(load_first(x, count), splat(inverse));
  store_low8(codes, kType == CacheType::kFloat8 ? to_float8(scaled) : round_to_int(scaled));
}

/// Puts a vector into the cache, its elements `stride` bytes apart.
template <CacheType kType>
LOCKSTEP_INLINE void place_elements(const float* x, std::size_t head_dim, std::byte* to, std::size_t stride, float* scale) {
  const EightBitScale found = scale_for<kType>(x, head_dim);
  *scale = found.scale;
  for (std::size_t d = 0; d < head_dim; d += 16) {
    const std::size_t n = lanes_left(head_dim, d);
    std::int8_t codes[16];
    round_elements<kType>(x + d, n, found.inverse, codes);
    for (std::size_t i = 0; i < n; ++i) to[(d + i) * stride] = static_cast<std::byte>(codes[i]);
  }
}
