// Rows of int8 blocks (docs/numerics.md, N1): what products with block-quantised weights read. A row is rounded as it is made, so that it
// need not stand anywhere as floats.

/// Rounds |x| < 2^22 to the nearest integer, ties to even.
LOCKSTEP_INLINE Ints round_to_int(Floats x) {
  const Floats magic = splat(12582912.0f);
  return sub(bits(add(x, magic)), bits(magic));
}

/// A row that stands somewhere as floats.
struct PlainRow {
  const float* x;
  __attribute__((always_inline)) Floats at(std::size_t i, std::size_t) const { return load(x + i); }
};

constexpr std::size_t kBlockGroup = 16;  // blocks whose scales are divided out side by side

template <class Row>
LOCKSTEP_INLINE float largest_of_block(const Row& row, std::size_t column) {
  const Ints magnitude_bits = splat_int(0x7FFFFFFF);
  // Magnitudes compare like their bits, and infinity and NaN are the largest: nothing that is not finite gets lost.
  const Ints a = bit_and(bits(row.at(column, 16)), magnitude_bits), b = bit_and(bits(row.at(column + 16, 16)), magnitude_bits);
  return __builtin_bit_cast(float, max_lane(max_int(a, b)));
}

template <class Row>
LOCKSTEP_INLINE void quantise_group(const Row& row, std::size_t first, std::size_t count, const Int8Row& out) {
  float largest[kBlockGroup] = {}, inverse[kBlockGroup], scale[kBlockGroup];
  std::int32_t finite[kBlockGroup];
  for (std::size_t i = 0; i < count; ++i) largest[i] = largest_of_block(row, (first + i) * 32);
  constexpr float kMost = 3.40282347e38f;
  for (std::size_t i = 0; i < kBlockGroup; ++i) {
    const float quotient = 127.0f / largest[i];  // infinite for a block of zeros, and for a subnormal maximum
    finite[i] = largest[i] <= kMost ? -1 : 0;
    inverse[i] = quotient <= kMost ? quotient : 0.0f;
    scale[i] = largest[i] <= kMost ? largest[i] / 127.0f : __builtin_nanf("");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t column = (first + i) * 32;
    const Floats factor = splat(inverse[i]);
    const Ints mask = splat_int(finite[i]);
    const Ints a = bit_and(round_to_int(mul(row.at(column, 16), factor)), mask);
    const Ints b = bit_and(round_to_int(mul(row.at(column + 16, 16), factor)), mask);
    store_low8(out.quants + column, a);
    store_low8(out.quants + column + 16, b);
    store_sums(out.sums + 2 * (first + i), a, b);
  }
  for (std::size_t i = 0; i < count; ++i) {
    out.scales[first + i] = scale[i];
    out.scaled_sums[first + i] = scale[i] * static_cast<float>(out.sums[2 * (first + i)] + out.sums[2 * (first + i) + 1]);
  }
}

template <class Row>
LOCKSTEP_INLINE void quantise_row(const Row& row, std::size_t blocks, const Int8Row& out) {
  for (std::size_t first = 0; first < blocks; first += kBlockGroup)
    quantise_group(row, first, blocks - first < kBlockGroup ? blocks - first : kBlockGroup, out);
}

void quantise(const float* x, std::size_t blocks, const Int8Row& out) { quantise_row(PlainRow{x}, blocks, out); }

void norm(float* x, const float* delta, const float* bias, std::size_t columns, const Norm& norm, const RowOut& out) {
  const NormedRow row = add_and_measure(x, delta, bias, columns, norm);
  if (out.floats) return store_row(row, columns, out.floats);
  quantise_row(row, columns / 32, out.blocks);
}
