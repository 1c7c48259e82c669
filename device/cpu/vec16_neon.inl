// The vector type of the kernels on NEON with dot products: 16 lanes are four registers. What each function gives is defined by
// vec16_portable.inl.
struct Floats {
  float32x4_t a, b, c, d;
};
struct Ints {
  int32x4_t a, b, c, d;
};

constexpr bool kQ8Offset = false;
constexpr int kAccumulators = 6;

/// f of each register of one operand, of two, of three.
#define LOCKSTEP_EACH(f, x) f(x.a), f(x.b), f(x.c), f(x.d)
#define LOCKSTEP_EACH2(f, x, y) f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)
#define LOCKSTEP_EACH3(f, x, y, z) f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)

LOCKSTEP_INLINE Floats splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}; }
LOCKSTEP_INLINE Floats zero() { return splat(0.0f); }
LOCKSTEP_INLINE Ints splat_int(std::int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}; }
LOCKSTEP_INLINE Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
LOCKSTEP_INLINE Floats load_first(const float* p, std::size_t n) {
  if (n == 16) return load(p);
  float lanes[16] = {};
  __builtin_memcpy(lanes, p, 4 * n);
  return load(lanes);
}
LOCKSTEP_INLINE void store(float* p, Floats x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
LOCKSTEP_INLINE void store_first(float* p, Floats x, std::size_t n) {
  if (n == 16) return store(p, x);
  float lanes[16];
  store(lanes, x);
  __builtin_memcpy(p, lanes, 4 * n);
}
LOCKSTEP_INLINE Floats fma(Floats x, Floats y, Floats z) { return {LOCKSTEP_EACH3(vfmaq_f32, z, x, y)}; }
LOCKSTEP_INLINE Floats add(Floats x, Floats y) { return {LOCKSTEP_EACH2(vaddq_f32, x, y)}; }
LOCKSTEP_INLINE Floats sub(Floats x, Floats y) { return {LOCKSTEP_EACH2(vsubq_f32, x, y)}; }
LOCKSTEP_INLINE Floats mul(Floats x, Floats y) { return {LOCKSTEP_EACH2(vmulq_f32, x, y)}; }
LOCKSTEP_INLINE Floats div(Floats x, Floats y) { return {LOCKSTEP_EACH2(vdivq_f32, x, y)}; }
// The processor's own maximum and minimum treat NaN differently.
#define LOCKSTEP_LARGER(x, y) vbslq_f32(vcgtq_f32(x, y), x, y)
#define LOCKSTEP_SMALLER(x, y) vbslq_f32(vcltq_f32(x, y), x, y)
LOCKSTEP_INLINE Floats max_of(Floats x, Floats y) { return {LOCKSTEP_EACH2(LOCKSTEP_LARGER, x, y)}; }
LOCKSTEP_INLINE Floats min_of(Floats x, Floats y) { return {LOCKSTEP_EACH2(LOCKSTEP_SMALLER, x, y)}; }
#undef LOCKSTEP_LARGER
#undef LOCKSTEP_SMALLER

LOCKSTEP_INLINE int32x4_t load_i32x4(const void* p) { return vreinterpretq_s32_s8(vld1q_s8(static_cast<const std::int8_t*>(p))); }
LOCKSTEP_INLINE Ints load_bytes(const void* p) {
  const std::int8_t* q = static_cast<const std::int8_t*>(p);
  return {load_i32x4(q), load_i32x4(q + 16), load_i32x4(q + 32), load_i32x4(q + 48)};
}
LOCKSTEP_INLINE Ints lane_numbers() {
  const std::int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_bytes(numbers);
}
LOCKSTEP_INLINE Floats select_lanes(Floats x, Floats y, int from, int to) {
  float lanes[16], others[16];
  store(lanes, x);
  store(others, y);
  for (int i = 0; i < 16; ++i) others[i] = i >= from && i < to ? lanes[i] : others[i];
  return load(others);
}
LOCKSTEP_INLINE void store_ints(std::int32_t* p, Ints x) {
  vst1q_s32(p, x.a);
  vst1q_s32(p + 4, x.b);
  vst1q_s32(p + 8, x.c);
  vst1q_s32(p + 12, x.d);
}
LOCKSTEP_INLINE int16x8_t low16(int32x4_t x, int32x4_t y) { return vcombine_s16(vmovn_s32(x), vmovn_s32(y)); }
LOCKSTEP_INLINE void store_low16(std::uint16_t* p, Ints x) {
  vst1q_u16(p, vreinterpretq_u16_s16(low16(x.a, x.b)));
  vst1q_u16(p + 8, vreinterpretq_u16_s16(low16(x.c, x.d)));
}
LOCKSTEP_INLINE void store_low8(std::int8_t* p, Ints x) {
  vst1q_s8(p, vcombine_s8(vmovn_s16(low16(x.a, x.b)), vmovn_s16(low16(x.c, x.d))));
}
LOCKSTEP_INLINE int32x4_t wide(uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); }
LOCKSTEP_INLINE Ints load_u16(const std::uint16_t* p) {
  return {wide(vld1_u16(p)), wide(vld1_u16(p + 4)), wide(vld1_u16(p + 8)), wide(vld1_u16(p + 12))};
}
LOCKSTEP_INLINE Ints load_i8(const std::byte* p) {
  const int8x16_t bytes = vld1q_s8(reinterpret_cast<const std::int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))};
}
LOCKSTEP_INLINE Ints bits(Floats x) { return {LOCKSTEP_EACH(vreinterpretq_s32_f32, x)}; }
LOCKSTEP_INLINE Floats from_bits(Ints x) { return {LOCKSTEP_EACH(vreinterpretq_f32_s32, x)}; }
LOCKSTEP_INLINE Floats to_floats(Ints x) { return {LOCKSTEP_EACH(vcvtq_f32_s32, x)}; }
LOCKSTEP_INLINE Ints add(Ints x, Ints y) { return {LOCKSTEP_EACH2(vaddq_s32, x, y)}; }
LOCKSTEP_INLINE Ints sub(Ints x, Ints y) { return {LOCKSTEP_EACH2(vsubq_s32, x, y)}; }
LOCKSTEP_INLINE Ints bit_and(Ints x, Ints y) { return {LOCKSTEP_EACH2(vandq_s32, x, y)}; }
LOCKSTEP_INLINE Ints bit_xor(Ints x, Ints y) { return {LOCKSTEP_EACH2(veorq_s32, x, y)}; }
LOCKSTEP_INLINE Ints bit_merge(Ints x, Ints y, Ints mask) {
#define LOCKSTEP_MERGE(v, w, m) vorrq_s32(v, vandq_s32(w, m))
  return {LOCKSTEP_EACH3(LOCKSTEP_MERGE, x, y, mask)};
#undef LOCKSTEP_MERGE
}
LOCKSTEP_INLINE Ints max_int(Ints x, Ints y) { return {LOCKSTEP_EACH2(vmaxq_s32, x, y)}; }
LOCKSTEP_INLINE std::int32_t max_lane(Ints x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
LOCKSTEP_INLINE std::int32_t sum_of_lanes(Ints x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
LOCKSTEP_INLINE void store_sums(std::int32_t* p, Ints x, Ints y) {
  p[0] = sum_of_lanes(x);
  p[1] = sum_of_lanes(y);
}
template <int N>
LOCKSTEP_INLINE Ints shift_left(Ints x) {
  return {vshlq_n_s32(x.a, N), vshlq_n_s32(x.b, N), vshlq_n_s32(x.c, N), vshlq_n_s32(x.d, N)};
}
LOCKSTEP_INLINE Ints shift_right_by(Ints x, int n) {
  const int32x4_t count = vdupq_n_s32(-n);
#define LOCKSTEP_SHIFT(v) vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), count))
  return {LOCKSTEP_EACH(LOCKSTEP_SHIFT, x)};
#undef LOCKSTEP_SHIFT
}
template <int N>
LOCKSTEP_INLINE Ints shift_right(Ints x) {
#define LOCKSTEP_SHIFT(v) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(v), N))
  return {LOCKSTEP_EACH(LOCKSTEP_SHIFT, x)};
#undef LOCKSTEP_SHIFT
}
template <int N>
LOCKSTEP_INLINE Ints shift_right_signed(Ints x) {
  return {vshrq_n_s32(x.a, N), vshrq_n_s32(x.b, N), vshrq_n_s32(x.c, N), vshrq_n_s32(x.d, N)};
}
LOCKSTEP_INLINE void take_greater(Floats& best, Ints& id, Floats x, Ints x_id) {
  const uint32x4_t a = vcgtq_f32(x.a, best.a), b = vcgtq_f32(x.b, best.b), c = vcgtq_f32(x.c, best.c), d = vcgtq_f32(x.d, best.d);
  best = {vbslq_f32(a, x.a, best.a), vbslq_f32(b, x.b, best.b), vbslq_f32(c, x.c, best.c), vbslq_f32(d, x.d, best.d)};
  id = {vbslq_s32(a, x_id.a, id.a), vbslq_s32(b, x_id.b, id.b), vbslq_s32(c, x_id.c, id.c), vbslq_s32(d, x_id.d, id.d)};
}

LOCKSTEP_INLINE float32x4_t load_half4(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
LOCKSTEP_INLINE Floats load_half(const std::uint16_t* p) {
  return {load_half4(p), load_half4(p + 4), load_half4(p + 8), load_half4(p + 12)};
}
LOCKSTEP_INLINE void store_half(std::uint16_t* p, Floats x) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
  vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
  vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(x.c)));
  vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(x.d)));
}
LOCKSTEP_INLINE int16x8_t halves_of_float8(int8x8_t bytes) {
  return vandq_s16(vshlq_n_s16(vmovl_s8(bytes), 7), vdupq_n_s16(static_cast<std::int16_t>(0xBF80)));
}
LOCKSTEP_INLINE Floats load_float8(const std::byte* p) {
  const int8x16_t bytes = vld1q_s8(reinterpret_cast<const std::int8_t*>(p));
  const int16x8_t low = halves_of_float8(vget_low_s8(bytes)), high = halves_of_float8(vget_high_s8(bytes));
#define LOCKSTEP_WIDEN(half) vcvt_f32_f16(vreinterpret_f16_s16(half))
  return {LOCKSTEP_WIDEN(vget_low_s16(low)), LOCKSTEP_WIDEN(vget_high_s16(low)), LOCKSTEP_WIDEN(vget_low_s16(high)),
          LOCKSTEP_WIDEN(vget_high_s16(high))};
#undef LOCKSTEP_WIDEN
}

LOCKSTEP_INLINE Ints load_table(const std::int8_t* p, std::int8_t flip) {
  const int32x4_t bytes = vreinterpretq_s32_s8(veorq_s8(vld1q_s8(p), vdupq_n_s8(flip)));
  return {bytes, bytes, bytes, bytes};
}
LOCKSTEP_INLINE Ints look_up(Ints table, Ints indexes) {
#define LOCKSTEP_LOOK_UP(t, i) vreinterpretq_s32_s8(vqtbl1q_s8(vreinterpretq_s8_s32(t), vreinterpretq_u8_s32(i)))
  return {LOCKSTEP_EACH2(LOCKSTEP_LOOK_UP, table, indexes)};
#undef LOCKSTEP_LOOK_UP
}

#define LOCKSTEP_DOT(sum, x, y) vdotq_s32(sum, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y))
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return w; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints, Ints x) { return {LOCKSTEP_EACH3(LOCKSTEP_DOT, accumulator, w, x)}; }
constexpr bool kNarrowDots = false;
LOCKSTEP_INLINE Ints unsigned_dot(Ints accumulator, Ints w, Ints x) { return {LOCKSTEP_EACH3(LOCKSTEP_DOT, accumulator, w, x)}; }
LOCKSTEP_INLINE Ints widen(Ints narrow) { return narrow; }
#undef LOCKSTEP_DOT
#undef LOCKSTEP_EACH
#undef LOCKSTEP_EACH2
#undef LOCKSTEP_EACH3
