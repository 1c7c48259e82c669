// The vector type of the kernels on AVX2: 16 lanes are two registers. What each function gives is defined by vec16_portable.inl.
struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};

constexpr bool kQ8Offset = false;
constexpr int kAccumulators = 6;

LOCKSTEP_INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LOCKSTEP_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LOCKSTEP_INLINE Ints splat_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LOCKSTEP_INLINE Ints lane_numbers() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }
LOCKSTEP_INLINE Ints below(int n) {  // all ones in lanes under n
  const Ints lanes = lane_numbers();
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes.a), _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes.b)};
}
LOCKSTEP_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LOCKSTEP_INLINE Floats load_first(const float* p, std::size_t n) {
  if (n == 16) return load(p);
  const Ints mask = below(static_cast<int>(n));
  return {_mm256_maskload_ps(p, mask.a), _mm256_maskload_ps(p + 8, mask.b)};
}
LOCKSTEP_INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
LOCKSTEP_INLINE void store_first(float* p, Floats x, std::size_t n) {
  if (n == 16) return store(p, x);  // masked stores are slow on some processors
  const Ints mask = below(static_cast<int>(n));
  _mm256_maskstore_ps(p, mask.a, x.a);
  _mm256_maskstore_ps(p + 8, mask.b, x.b);
}
LOCKSTEP_INLINE Floats fma(Floats x, Floats y, Floats z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LOCKSTEP_INLINE Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats max_of(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats min_of(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LOCKSTEP_INLINE Floats select_lanes(Floats x, Floats y, int from, int to) {
  const Ints low = below(from), high = below(to);
  const __m256i a = _mm256_andnot_si256(low.a, high.a), b = _mm256_andnot_si256(low.b, high.b);
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(b))};
}

LOCKSTEP_INLINE Ints load_bytes(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
LOCKSTEP_INLINE void store_ints(std::int32_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
LOCKSTEP_INLINE __m256i low16(Ints x) {  // the low halves of 16 lanes, in order
  const __m256i mask = _mm256_set1_epi32(0xFFFF);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
  return _mm256_permute4x64_epi64(packed, 0xD8);
}
LOCKSTEP_INLINE void store_low16(std::uint16_t* p, Ints x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low16(x)); }
LOCKSTEP_INLINE void store_low8(std::int8_t* p, Ints x) {
  const __m256i halves = _mm256_and_si256(low16(x), _mm256_set1_epi16(0xFF));
  const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
LOCKSTEP_INLINE Ints load_u16(const std::uint16_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
LOCKSTEP_INLINE Ints load_i8(const std::byte* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
LOCKSTEP_INLINE Ints bits(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LOCKSTEP_INLINE Floats from_bits(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LOCKSTEP_INLINE Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
LOCKSTEP_INLINE Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LOCKSTEP_INLINE Ints sub(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
LOCKSTEP_INLINE Ints bit_and(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LOCKSTEP_INLINE Ints bit_xor(Ints x, Ints y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
LOCKSTEP_INLINE Ints bit_merge(Ints x, Ints y, Ints mask) {
  return {_mm256_or_si256(x.a, _mm256_and_si256(y.a, mask.a)), _mm256_or_si256(x.b, _mm256_and_si256(y.b, mask.b))};
}
LOCKSTEP_INLINE Ints max_int(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
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
LOCKSTEP_INLINE std::int32_t max_lane(Ints x) { return max_of_eight(_mm256_max_epi32(x.a, x.b)); }
LOCKSTEP_INLINE void store_sums(std::int32_t* p, Ints x, Ints y) {
  store_sums_of_eight(p, _mm256_add_epi32(x.a, x.b), _mm256_add_epi32(y.a, y.b));
}
template <int N>
LOCKSTEP_INLINE Ints shift_left(Ints x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
LOCKSTEP_INLINE Ints shift_right(Ints x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
LOCKSTEP_INLINE Ints shift_right_signed(Ints x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
LOCKSTEP_INLINE Ints shift_right_by(Ints x, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(x.a, count), _mm256_srl_epi32(x.b, count)};
}
LOCKSTEP_INLINE void take_greater(Floats& best, Ints& id, Floats x, Ints x_id) {
  const __m256 a = _mm256_cmp_ps(x.a, best.a, _CMP_GT_OQ), b = _mm256_cmp_ps(x.b, best.b, _CMP_GT_OQ);
  best = {_mm256_blendv_ps(best.a, x.a, a), _mm256_blendv_ps(best.b, x.b, b)};
  id = {_mm256_blendv_epi8(id.a, x_id.a, _mm256_castps_si256(a)), _mm256_blendv_epi8(id.b, x_id.b, _mm256_castps_si256(b))};
}

LOCKSTEP_INLINE Floats load_half(const std::uint16_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
LOCKSTEP_INLINE void store_half(std::uint16_t* p, Floats x) {
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
LOCKSTEP_INLINE Floats load_float8(const std::byte* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<std::int16_t>(0xBF80)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

LOCKSTEP_INLINE Ints load_table(const std::int8_t* p, std::int8_t flip) {
  const __m128i bytes = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(flip));
  return {_mm256_broadcastsi128_si256(bytes), _mm256_broadcastsi128_si256(bytes)};
}
LOCKSTEP_INLINE Ints look_up(Ints table, Ints indexes) {
  return {_mm256_shuffle_epi8(table.a, indexes.a), _mm256_shuffle_epi8(table.b, indexes.b)};
}

// Signed weights: |w| times x with the sign of w. A pair is 2 * 128 * 127 at most, so the saturating add of maddubs never saturates.
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return {_mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b)}; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints magnitude, Ints x) {
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.a, _mm256_sign_epi8(x.a, w.a)), one);
  const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.b, _mm256_sign_epi8(x.b, w.b)), one);
  return {_mm256_add_epi32(accumulator.a, a), _mm256_add_epi32(accumulator.b, b)};
}
// Unsigned weights add up in int16 until they are widened.
constexpr bool kNarrowDots = true;
LOCKSTEP_INLINE Ints unsigned_dot(Ints accumulator, Ints w, Ints x) {
  return {_mm256_add_epi16(accumulator.a, _mm256_maddubs_epi16(w.a, x.a)), _mm256_add_epi16(accumulator.b, _mm256_maddubs_epi16(w.b, x.b))};
}
LOCKSTEP_INLINE Ints widen(Ints narrow) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(narrow.a, one), _mm256_madd_epi16(narrow.b, one)};
}
