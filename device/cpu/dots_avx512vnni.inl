// Quad dots with VNNI: unsigned weights. Q8_0 is stored with 128 added, which a start of -128 * sum(x) takes back.
constexpr bool kQ8Offset = true;
LOCKSTEP_INLINE Ints q8_begin(std::int32_t sum) { return splat_int(-128 * sum); }
LOCKSTEP_INLINE Ints q8_prepare(Ints w) { return w; }
LOCKSTEP_INLINE Ints q8_dot(Ints accumulator, Ints w, Ints, Ints x) { return {_mm512_dpbusd_epi32(accumulator.a, w.a, x.a)}; }
LOCKSTEP_INLINE Ints q4_begin(std::int32_t start) { return splat_int(start); }
LOCKSTEP_INLINE Ints q4_dot(Ints accumulator, Ints w, Ints x) { return {_mm512_dpbusd_epi32(accumulator.a, w.a, x.a)}; }
LOCKSTEP_INLINE Ints q4_end(Ints accumulator, std::int32_t) { return accumulator; }
