// The vector type of the kernels, 16 lanes of fp32 or int32, in plain C++. It defines what the other levels must give, bit for bit.
#undef LOCKSTEP_INLINE
#define LOCKSTEP_INLINE static inline  // forced, it takes the compiler minutes
#undef LOCKSTEP_UNROLL
#define LOCKSTEP_UNROLL  // 16 lanes are a loop already
#define LOCKSTEP_LANES for (int i = 0; i < 16; ++i)

struct Floats {
  float v[16];
};
struct Ints {
  std::int32_t v[16];
};

constexpr bool kQ8Offset = false;
constexpr int kAccumulators = 4;  // vectors of 16 that a tile may hold

LOCKSTEP_INLINE std::uint32_t lane_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
LOCKSTEP_INLINE float lane_float(std::uint32_t x) { return __builtin_bit_cast(float, x); }

LOCKSTEP_INLINE Floats splat(float x) {
  Floats r;
  LOCKSTEP_LANES r.v[i] = x;
  return r;
}
LOCKSTEP_INLINE Floats zero() { return splat(0.0f); }
LOCKSTEP_INLINE Floats load(const float* p) {
  Floats r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
LOCKSTEP_INLINE Floats load_first(const float* p, std::size_t n) {
  Floats r = zero();
  __builtin_memcpy(r.v, p, 4 * n);
  return r;
}
LOCKSTEP_INLINE void store(float* p, Floats a) { __builtin_memcpy(p, a.v, 64); }
LOCKSTEP_INLINE void store_first(float* p, Floats a, std::size_t n) { __builtin_memcpy(p, a.v, 4 * n); }
LOCKSTEP_INLINE Floats fma(Floats a, Floats b, Floats c) {
  Floats r;
  LOCKSTEP_LANES r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}
#define LOCKSTEP_BINARY(name, expression)           \
  LOCKSTEP_INLINE Floats name(Floats a, Floats b) { \
    Floats r;                                       \
    LOCKSTEP_LANES r.v[i] = expression;             \
    return r;                                       \
  }
LOCKSTEP_BINARY(add, a.v[i] + b.v[i])
LOCKSTEP_BINARY(sub, a.v[i] - b.v[i])
LOCKSTEP_BINARY(mul, a.v[i] * b.v[i])
LOCKSTEP_BINARY(div, a.v[i] / b.v[i])
LOCKSTEP_BINARY(max_of, a.v[i] > b.v[i] ? a.v[i] : b.v[i])  // b where either is NaN
LOCKSTEP_BINARY(min_of, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
#undef LOCKSTEP_BINARY

/// Lanes [from, to) of a, the others of b.
LOCKSTEP_INLINE Floats select_lanes(Floats a, Floats b, int from, int to) {
  LOCKSTEP_LANES if (i >= from && i < to) b.v[i] = a.v[i];
  return b;
}

LOCKSTEP_INLINE Ints splat_int(std::int32_t x) {
  Ints r;
  LOCKSTEP_LANES r.v[i] = x;
  return r;
}
LOCKSTEP_INLINE Ints lane_numbers() {
  Ints r;
  LOCKSTEP_LANES r.v[i] = i;
  return r;
}
LOCKSTEP_INLINE Ints load_bytes(const void* p) {
  Ints r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
LOCKSTEP_INLINE void store_ints(std::int32_t* p, Ints a) { __builtin_memcpy(p, a.v, 64); }
LOCKSTEP_INLINE void store_low8(std::int8_t* p, Ints a) { LOCKSTEP_LANES p[i] = static_cast<std::int8_t>(a.v[i]); }
LOCKSTEP_INLINE void store_low16(std::uint16_t* p, Ints a) { LOCKSTEP_LANES p[i] = static_cast<std::uint16_t>(a.v[i]); }
LOCKSTEP_INLINE Ints load_u16(const std::uint16_t* p) {
  Ints r;
  LOCKSTEP_LANES r.v[i] = p[i];
  return r;
}
LOCKSTEP_INLINE Ints load_i8(const std::byte* p) {
  Ints r;
  LOCKSTEP_LANES r.v[i] = static_cast<std::int8_t>(p[i]);
  return r;
}
LOCKSTEP_INLINE Ints bits(Floats a) { return __builtin_bit_cast(Ints, a); }
LOCKSTEP_INLINE Floats from_bits(Ints a) { return __builtin_bit_cast(Floats, a); }
LOCKSTEP_INLINE Floats to_floats(Ints a) {
  Floats r;
  LOCKSTEP_LANES r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
#define LOCKSTEP_BINARY(name, expression)                                                                 \
  LOCKSTEP_INLINE Ints name(Ints a, Ints b) {                                                             \
    LOCKSTEP_LANES {                                                                                      \
      const std::uint32_t x = static_cast<std::uint32_t>(a.v[i]), y = static_cast<std::uint32_t>(b.v[i]); \
      a.v[i] = static_cast<std::int32_t>(expression);                                                     \
    }                                                                                                     \
    return a;                                                                                             \
  }
LOCKSTEP_BINARY(add, x + y)
LOCKSTEP_BINARY(sub, x - y)
LOCKSTEP_BINARY(bit_and, x& y)
LOCKSTEP_BINARY(bit_xor, x ^ y)
LOCKSTEP_BINARY(max_int, static_cast<std::int32_t>(x) > static_cast<std::int32_t>(y) ? x : y)
LOCKSTEP_BINARY(equal_int, x == y ? 0xFFFFFFFFu : 0u)
#undef LOCKSTEP_BINARY
LOCKSTEP_INLINE std::int32_t max_lane(Ints a) {
  std::int32_t most = a.v[0];
  LOCKSTEP_LANES most = a.v[i] > most ? a.v[i] : most;
  return most;
}
/// p[0] is the sum of the lanes of a, p[1] of b; they must fit.
LOCKSTEP_INLINE void store_sums(std::int32_t* p, Ints a, Ints b) {
  p[0] = p[1] = 0;
  LOCKSTEP_LANES p[0] += a.v[i], p[1] += b.v[i];
}
LOCKSTEP_INLINE Ints bit_merge(Ints a, Ints b, Ints mask) {  // a, and what b has under the mask
  LOCKSTEP_LANES a.v[i] |= b.v[i] & mask.v[i];
  return a;
}
template <int N>
LOCKSTEP_INLINE Ints shift_left(Ints a) {
  LOCKSTEP_LANES a.v[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) << N);
  return a;
}
template <int N>
LOCKSTEP_INLINE Ints shift_right(Ints a) {  // logical
  LOCKSTEP_LANES a.v[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) >> N);
  return a;
}
template <int N>
LOCKSTEP_INLINE Ints shift_right_signed(Ints a) {
  LOCKSTEP_LANES a.v[i] >>= N;
  return a;
}
LOCKSTEP_INLINE Ints shift_right_by(Ints a, int n) {  // logical
  LOCKSTEP_LANES a.v[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) >> n);
  return a;
}
/// Where x > best: best = x, id = x_id.
LOCKSTEP_INLINE void take_greater(Floats& best, Ints& id, Floats x, Ints x_id) {
  LOCKSTEP_LANES if (x.v[i] > best.v[i]) {
    best.v[i] = x.v[i];
    id.v[i] = x_id.v[i];
  }
}

LOCKSTEP_INLINE Floats load_half(const std::uint16_t* p) {
  Floats r;
  LOCKSTEP_LANES {
    const std::uint32_t sign = (p[i] & 0x8000u) << 16, exponent = (p[i] >> 10) & 31u, mantissa = p[i] & 1023u;
    const std::uint32_t quiet = exponent == 31 && mantissa != 0 ? 0x400000u : 0u;
    r.v[i] = exponent == 0 ? lane_float(lane_bits(static_cast<float>(mantissa) * 0x1p-24f) | sign)
                           : lane_float(sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13) | quiet);
  }
  return r;
}
LOCKSTEP_INLINE void store_half(std::uint16_t* p, Floats a) {
  LOCKSTEP_LANES {
    const std::uint32_t sign = (lane_bits(a.v[i]) >> 16) & 0x8000u, magnitude = lane_bits(a.v[i]) & 0x7FFFFFFFu;
    std::uint32_t half;
    if (magnitude > 0x7F800000u) {
      half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    } else if (magnitude >= 0x47800000u) {
      half = 0x7C00u;
    } else if (magnitude < 0x38800000u) {
      half = static_cast<std::uint32_t>((lane_float(magnitude) * 0x1p24f + 0x1p23f) - 0x1p23f);
    } else {
      half = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    }
    p[i] = static_cast<std::uint16_t>(sign | half);
  }
}
/// Numbers in e4m3 (no NaN among them), times 2^-8: as halves with the same bits they are so much smaller.
LOCKSTEP_INLINE Floats load_float8(const std::byte* p) {
  std::uint16_t halves[16];
  LOCKSTEP_LANES halves[i] =
      static_cast<std::uint16_t>((static_cast<unsigned>(p[i]) & 0x80u) << 8 | (static_cast<unsigned>(p[i]) & 0x7Fu) << 7);
  return load_half(halves);
}

/// A table of 16 bytes, each of them XORed with `flip`.
LOCKSTEP_INLINE Ints load_table(const std::int8_t* p, std::int8_t flip) {
  std::int8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<std::int8_t>(p[i % 16] ^ flip);
  return load_bytes(bytes);
}
/// Each byte of `indexes`, 0 to 15, replaced by that of the table.
LOCKSTEP_INLINE Ints look_up(Ints table, Ints indexes) {
  Ints r;
  std::int8_t bytes[64], values[64];
  __builtin_memcpy(bytes, indexes.v, 64);
  __builtin_memcpy(values, table.v, 64);
  for (int i = 0; i < 64; ++i) bytes[i] = values[bytes[i]];
  __builtin_memcpy(r.v, bytes, 64);
  return r;
}

// Dots of four int8 a lane. Unsigned weights are below 64; signed ones may be any.
LOCKSTEP_INLINE Ints quad_dot(Ints accumulator, Ints w, Ints x) {
  LOCKSTEP_LANES for (int j = 0; j < 4; ++j) {
    const std::int32_t a = static_cast<std::int8_t>(static_cast<std::uint32_t>(w.v[i]) >> (8 * j));
    const std::int32_t b = static_cast<std::int8_t>(static_cast<std::uint32_t>(x.v[i]) >> (8 * j));
    accumulator.v[i] += a * b;
  }
  return accumulator;
}
constexpr bool kNarrowDots = false;  // whether unsigned dots add up in int16 and must be widened in time
LOCKSTEP_INLINE Ints widen(Ints narrow) { return narrow; }
LOCKSTEP_INLINE Ints unsigned_dot(Ints accumulator, Ints w, Ints x) { return quad_dot(accumulator, w, x); }
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return w; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints, Ints x) { return quad_dot(accumulator, w, x); }
