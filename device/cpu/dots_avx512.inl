// Quad dots on AVX-512 without VNNI: those of vec16_avx2.inl, with the sign of w applied through a mask.
constexpr bool kQ8Offset = false;
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return {_mm512_abs_epi8(w.a)}; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints magnitude, Ints x) {
  const __m512i with_sign = _mm512_mask_sub_epi8(x.a, _mm512_movepi8_mask(w.a), _mm512_setzero_si512(), x.a);
  return {_mm512_add_epi32(accumulator.a, _mm512_madd_epi16(_mm512_maddubs_epi16(magnitude.a, with_sign), _mm512_set1_epi16(1)))};
}
constexpr bool kNarrowDots = true;
LOCKSTEP_INLINE Ints unsigned_dot(Ints accumulator, Ints w, Ints x) {
  return {_mm512_add_epi16(accumulator.a, _mm512_maddubs_epi16(w.a, x.a))};
}
LOCKSTEP_INLINE Ints widen(Ints narrow) { return {_mm512_madd_epi16(narrow.a, _mm512_set1_epi16(1))}; }
