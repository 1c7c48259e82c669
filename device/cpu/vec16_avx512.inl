// The vector type of the kernels on AVX-512: one register. What each function gives is defined by vec16_portable.inl.
struct Floats {
  __m512 a;
};
struct Ints {
  __m512i a;
};

constexpr int kAccumulators = 16;

LOCKSTEP_INLINE __mmask16 below(int n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1); }
LOCKSTEP_INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
LOCKSTEP_INLINE Floats zero() { return {_mm512_setzero_ps()}; }
LOCKSTEP_INLINE Ints splat_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
LOCKSTEP_INLINE Ints lane_numbers() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
LOCKSTEP_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
LOCKSTEP_INLINE Floats load_first(const float* p, std::size_t n) { return {_mm512_maskz_loadu_ps(below(static_cast<int>(n)), p)}; }
LOCKSTEP_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.a); }
LOCKSTEP_INLINE void store_first(float* p, Floats x, std::size_t n) { _mm512_mask_storeu_ps(p, below(static_cast<int>(n)), x.a); }
LOCKSTEP_INLINE Floats fma(Floats x, Floats y, Floats z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
LOCKSTEP_INLINE Floats add(Floats x, Floats y) { return {_mm512_add_ps(x.a, y.a)}; }
LOCKSTEP_INLINE Floats sub(Floats x, Floats y) { return {_mm512_sub_ps(x.a, y.a)}; }
LOCKSTEP_INLINE Floats mul(Floats x, Floats y) { return {_mm512_mul_ps(x.a, y.a)}; }
LOCKSTEP_INLINE Floats div(Floats x, Floats y) { return {_mm512_div_ps(x.a, y.a)}; }
LOCKSTEP_INLINE Floats max_of(Floats x, Floats y) { return {_mm512_maskz_max_ps(0xFFFF, x.a, y.a)}; }
LOCKSTEP_INLINE Floats min_of(Floats x, Floats y) { return {_mm512_maskz_min_ps(0xFFFF, x.a, y.a)}; }
LOCKSTEP_INLINE Floats select_lanes(Floats x, Floats y, int from, int to) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below(to) & ~below(from)), y.a, x.a)};
}

LOCKSTEP_INLINE Ints load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
LOCKSTEP_INLINE void store_ints(std::int32_t* p, Ints x) { _mm512_storeu_si512(p, x.a); }
LOCKSTEP_INLINE void store_low16(std::uint16_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xFFFF, x.a));
}
LOCKSTEP_INLINE void store_low8(std::int8_t* p, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xFFFF, x.a));
}
LOCKSTEP_INLINE Ints load_u16(const std::uint16_t* p) {
  return {_mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
LOCKSTEP_INLINE Ints load_i8(const std::byte* p) {
  return {_mm512_maskz_cvtepi8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
LOCKSTEP_INLINE Ints bits(Floats x) { return {_mm512_castps_si512(x.a)}; }
LOCKSTEP_INLINE Floats from_bits(Ints x) { return {_mm512_castsi512_ps(x.a)}; }
LOCKSTEP_INLINE Floats to_floats(Ints x) { return {_mm512_maskz_cvtepi32_ps(0xFFFF, x.a)}; }
LOCKSTEP_INLINE Ints add(Ints x, Ints y) { return {_mm512_add_epi32(x.a, y.a)}; }
LOCKSTEP_INLINE Ints sub(Ints x, Ints y) { return {_mm512_sub_epi32(x.a, y.a)}; }
LOCKSTEP_INLINE Ints bit_and(Ints x, Ints y) { return {_mm512_and_si512(x.a, y.a)}; }
LOCKSTEP_INLINE Ints bit_xor(Ints x, Ints y) { return {_mm512_xor_si512(x.a, y.a)}; }
LOCKSTEP_INLINE Ints bit_merge(Ints x, Ints y, Ints mask) { return {_mm512_ternarylogic_epi32(x.a, y.a, mask.a, 0xF8)}; }
LOCKSTEP_INLINE Ints max_int(Ints x, Ints y) { return {_mm512_maskz_max_epi32(0xFFFF, x.a, y.a)}; }
LOCKSTEP_INLINE std::int32_t max_of_eight(__m256i x) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
LOCKSTEP_INLINE void store_sums_of_eight(std::int32_t* p, __m256i x, __m256i y) {
  const __m256i pairs = _mm256_hadd_epi32(x, y);  // two of x, two of y, in each half
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_hadd_epi32(four, four));
}
LOCKSTEP_INLINE __m256i low_half(Ints x) { return _mm512_maskz_extracti64x4_epi64(0xFF, x.a, 0); }
LOCKSTEP_INLINE __m256i high_half(Ints x) { return _mm512_maskz_extracti64x4_epi64(0xFF, x.a, 1); }
LOCKSTEP_INLINE std::int32_t max_lane(Ints x) { return max_of_eight(_mm256_max_epi32(low_half(x), high_half(x))); }
LOCKSTEP_INLINE void store_sums(std::int32_t* p, Ints x, Ints y) {
  store_sums_of_eight(p, _mm256_add_epi32(low_half(x), high_half(x)), _mm256_add_epi32(low_half(y), high_half(y)));
}
template <int N>
LOCKSTEP_INLINE Ints shift_left(Ints x) {
  return {_mm512_maskz_slli_epi32(0xFFFF, x.a, N)};
}
template <int N>
LOCKSTEP_INLINE Ints shift_right(Ints x) {
  return {_mm512_maskz_srli_epi32(0xFFFF, x.a, N)};
}
template <int N>
LOCKSTEP_INLINE Ints shift_right_signed(Ints x) {
  return {_mm512_maskz_srai_epi32(0xFFFF, x.a, N)};
}
LOCKSTEP_INLINE Ints shift_right_by(Ints x, int n) { return {_mm512_maskz_srlv_epi32(0xFFFF, x.a, _mm512_set1_epi32(n))}; }
LOCKSTEP_INLINE void take_greater(Floats& best, Ints& id, Floats x, Ints x_id) {
  const __mmask16 greater = _mm512_cmp_ps_mask(x.a, best.a, _CMP_GT_OQ);
  best = {_mm512_mask_blend_ps(greater, best.a, x.a)};
  id = {_mm512_mask_blend_epi32(greater, id.a, x_id.a)};
}

LOCKSTEP_INLINE Floats load_half(const std::uint16_t* p) {
  return {_mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
LOCKSTEP_INLINE void store_half(std::uint16_t* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xFFFF, x.a, _MM_FROUND_TO_NEAREST_INT));
}
LOCKSTEP_INLINE Floats load_float8(const std::byte* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<std::int16_t>(0xBF80)));
  return {_mm512_maskz_cvtph_ps(0xFFFF, halves)};
}

LOCKSTEP_INLINE Ints load_table(const std::int8_t* p, std::int8_t flip) {
  const __m128i bytes = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(flip));
  return {_mm512_maskz_broadcast_i32x4(0xFFFF, bytes)};
}
LOCKSTEP_INLINE Ints look_up(Ints table, Ints indexes) { return {_mm512_shuffle_epi8(table.a, indexes.a)}; }
