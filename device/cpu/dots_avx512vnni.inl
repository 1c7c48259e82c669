// Quad dots with VNNI: unsigned weights. Signed ones have 128 added, which a start of -128 * sum(x) takes back.
constexpr bool kQ8Offset = true;
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return w; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints, Ints x) { return {_mm512_dpbusd_epi32(accumulator.a, w.a, x.a)}; }
constexpr bool kNarrowDots = false;
LOCKSTEP_INLINE Ints unsigned_dot(Ints accumulator, Ints w, Ints x) { return {_mm512_dpbusd_epi32(accumulator.a, w.a, x.a)}; }
LOCKSTEP_INLINE Ints widen(Ints narrow) { return narrow; }
