// What is done to one row at a time.

LOCKSTEP_INLINE std::size_t lanes_left(std::size_t count, std::size_t at) { return count - at < 16 ? count - at : 16; }

/// The fixed tree over 16 lanes: halves.
LOCKSTEP_INLINE float sum_lanes(Floats a) {
  float v[16];
  store(v, a);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

void exponentials(const float* x, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; i += 16) {
    const std::size_t n = lanes_left(count, i);
    store_first(out + i, exp_of(load_first(x + i, n)), n);
  }
}

template <Nonlinearity kFunction, bool kLimited>
LOCKSTEP_INLINE void activate_row(const Gating& gating, const float* gate, const float* up, std::size_t columns, float* out) {
  const Floats limit = splat(gating.limit), lowest = splat(-gating.limit), offset = splat(gating.up_offset);
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    Floats x = load_first(gate + i, n);
    if constexpr (kLimited) x = min_of(limit, x);  // NaN is the second operand and stays
    Floats y = activation_of<kFunction>(x);
    if (up) {
      Floats factor = load_first(up + i, n);
      if constexpr (kLimited) factor = add(max_of(lowest, min_of(limit, factor)), offset);
      y = mul(y, factor);
    }
    store_first(out + i, y, n);
  }
}

template <Nonlinearity kFunction>
LOCKSTEP_INLINE void activate_row(const Gating& gating, const float* gate, const float* up, std::size_t columns, float* out) {
  if (gating.limit < __builtin_inff() || gating.up_offset != 0.0f) return activate_row<kFunction, true>(gating, gate, up, columns, out);
  activate_row<kFunction, false>(gating, gate, up, columns, out);
}

void activate(const Gating& gating, const float* gate, const float* up, std::size_t columns, float* out) {
  switch (gating.function) {
    case Nonlinearity::kSilu: return activate_row<Nonlinearity::kSilu>(gating, gate, up, columns, out);
    case Nonlinearity::kGelu: return activate_row<Nonlinearity::kGelu>(gating, gate, up, columns, out);
    case Nonlinearity::kGeluTanh: return activate_row<Nonlinearity::kGeluTanh>(gating, gate, up, columns, out);
    case Nonlinearity::kRelu: return activate_row<Nonlinearity::kRelu>(gating, gate, up, columns, out);
    case Nonlinearity::kGeluQuick: return activate_row<Nonlinearity::kGeluQuick>(gating, gate, up, columns, out);
  }
}

void add_rows(float* x, const float* delta, const float* bias, std::size_t columns) {
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    Floats d = load_first(delta + i, n);
    if (bias) d = add(d, load_first(bias + i, n));
    store_first(x + i, add(load_first(x + i, n), d), n);
  }
}

/// x - shift of the lanes that are there, +0 in the others, so that these change no sum.
LOCKSTEP_INLINE Floats shifted_first(const float* x, std::size_t n, Floats shift) {
  return select_lanes(sub(load_first(x, n), shift), zero(), 0, static_cast<int>(n));
}

LOCKSTEP_INLINE float sum_of_squares(const float* x, std::size_t columns, Floats shift) {
  Floats squares = zero();
  for (std::size_t i = 0; i < columns; i += 16) {
    const Floats v = shifted_first(x + i, lanes_left(columns, i), shift);
    squares = fma(v, v, squares);
  }
  return sum_lanes(squares);
}

/// A row behind its norm, 16 columns at a time.
struct NormedRow {
  const float* x;
  Floats mean, factor;  // RMSNorm: x - 0 is x, bit for bit
  const float* weight;  // or null
  const float* bias;    // or null

  __attribute__((always_inline)) Floats at(std::size_t i, std::size_t n) const {
    Floats v = mul(sub(load_first(x + i, n), mean), factor);
    if (weight) v = mul(v, load_first(weight + i, n));
    if (bias) v = add(v, load_first(bias + i, n));
    return v;
  }
};

LOCKSTEP_INLINE void store_row(const NormedRow& row, std::size_t columns, float* out) {
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    store_first(out + i, row.at(i, n), n);
  }
}

LOCKSTEP_INLINE Floats scale_of_norm(float mean_square, float eps) { return splat(1.0f / __builtin_sqrtf(mean_square + eps)); }

/// x += delta + bias, and in the same pass the sums of the norm that follows.
LOCKSTEP_INLINE NormedRow add_and_measure(float* x, const float* delta, const float* bias, std::size_t columns, const Norm& norm) {
  const float count = static_cast<float>(columns);
  const bool layer = norm.kind == Norm::Kind::kLayer;
  Floats sum = zero(), squares = zero();
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    Floats v = load_first(x + i, n);
    if (delta) {
      Floats d = load_first(delta + i, n);
      if (bias) d = add(d, load_first(bias + i, n));
      v = add(v, d);
      store_first(x + i, v, n);
    }
    if (layer) {
      sum = add(sum, v);
    } else {
      squares = fma(v, v, squares);
    }
  }
  Floats mean = zero();
  if (layer) mean = splat(sum_lanes(sum) / count);
  const float square = (layer ? sum_of_squares(x, columns, mean) : sum_lanes(squares)) / count;
  return {x, mean, scale_of_norm(square, norm.eps), norm.weight, norm.bias};
}

float square_sum(const float* x, std::size_t columns) { return sum_of_squares(x, columns, zero()); }

void norm_by_square(float* x, std::size_t columns, float mean_square, const float* weight, float eps) {
  store_row({x, zero(), scale_of_norm(mean_square, eps), weight, nullptr}, columns, x);
}

void scale(float* x, std::size_t columns, float factor) {
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    store_first(x + i, mul(load_first(x + i, n), splat(factor)), n);
  }
}

void add_scaled(float* sum, const float* x, const float* bias, std::size_t columns, float factor) {
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    Floats v = load_first(x + i, n);
    if (bias) v = add(v, load_first(bias + i, n));
    store_first(sum + i, fma(splat(factor), v, load_first(sum + i, n)), n);
  }
}

void soft_cap(float* x, std::size_t columns, float cap) {
  for (std::size_t i = 0; i < columns; i += 16) {
    const std::size_t n = lanes_left(columns, i);
    store_first(x + i, mul(splat(cap), tanh_of(div(load_first(x + i, n), splat(cap)))), n);
  }
}

Top top(const float* logits, std::size_t count) {
  if (count == 0) return {0.0f, -1, true};
  const float lowest = -__builtin_inff();
  // Parts one behind the other, side by side, so that a comparison need not wait for the one before it; the earlier part wins a tie.
  constexpr int kParts = kAccumulators >= 16 ? 4 : 2;
  const std::size_t part = count / (16 * kParts) * 16;
  Floats bests[kParts], checks_of_parts[kParts];
  Ints ids_of_parts[kParts], id = lane_numbers();
  for (int p = 0; p < kParts; ++p) {
    bests[p] = splat(lowest);
    checks_of_parts[p] = zero();
    ids_of_parts[p] = splat_int(0);
  }
  for (std::size_t at = 0; at < part; at += 16) {
    LOCKSTEP_UNROLL
    for (int p = 0; p < kParts; ++p) {
      const Floats x = load(logits + static_cast<std::size_t>(p) * part + at);
      take_greater(bests[p], ids_of_parts[p], x, id);
      checks_of_parts[p] = fma(x, zero(), checks_of_parts[p]);  // infinity * 0 and NaN * 0 are NaN
    }
    id = add(id, splat_int(16));
  }
  Floats best = bests[0], not_finite = checks_of_parts[0];
  Ints ids = ids_of_parts[0];
  for (int p = 1; p < kParts; ++p) {
    take_greater(best, ids, bests[p], add(ids_of_parts[p], splat_int(static_cast<std::int32_t>(static_cast<std::size_t>(p) * part))));
    not_finite = add(not_finite, checks_of_parts[p]);
  }
  std::size_t i = static_cast<std::size_t>(kParts) * part;
  id = add(lane_numbers(), splat_int(static_cast<std::int32_t>(i)));
  for (; i + 16 <= count; i += 16) {
    const Floats x = load(logits + i);
    take_greater(best, ids, x, id);
    not_finite = fma(x, zero(), not_finite);
    id = add(id, splat_int(16));
  }
  float values[16], checks[16];
  std::int32_t places[16];
  store(values, best);
  store(checks, not_finite);
  store_ints(places, ids);
  Top found{lowest, -1, true};
  for (int lane = 0; lane < 16; ++lane) {
    if (checks[lane] != 0.0f) found.finite = false;
    if (values[lane] > found.logit || (values[lane] == found.logit && values[lane] > lowest && places[lane] < found.id)) {
      found.logit = values[lane];
      found.id = places[lane];
    }
  }
  for (; i < count; ++i) {
    if (logits[i] * 0.0f != 0.0f) found.finite = false;
    if (logits[i] > found.logit) {
      found.logit = logits[i];
      found.id = static_cast<std::int32_t>(i);
    }
  }
  if (found.id < 0) {  // nothing above minus infinity
    found.id = 0;
    while (static_cast<std::size_t>(found.id) + 1 < count && logits[found.id] != lowest) ++found.id;
    if (logits[found.id] != lowest) found.id = 0;
  }
  found.logit = logits[found.id];
  return found;
}

void rotate(const float* x, std::size_t head_dim, const float* cosines, const float* sines, std::size_t half, float* out) {
  for (std::size_t i = 0; i < half; i += 16) {
    const std::size_t n = lanes_left(half, i);
    const Floats first = load_first(x + i, n), second = load_first(x + half + i, n);
    const Floats cosine = load_first(cosines + i, n), sine = load_first(sines + i, n);
    const Floats crossed = mul(second, sine);
    store_first(out + i, fma(first, cosine, from_bits(bit_xor(bits(crossed), splat_int(static_cast<std::int32_t>(0x80000000u))))), n);
    store_first(out + half + i, fma(second, cosine, mul(first, sine)), n);
  }
  if (out != x) {
    for (std::size_t i = 2 * half; i < head_dim; ++i) out[i] = x[i];
  }
}

LOCKSTEP_INLINE void store_bfloat16(std::uint16_t* p, Floats a) {
  const Ints b = bits(a);
  const Ints rounded = add(add(b, splat_int(0x7FFF)), bit_and(shift_right<16>(b), splat_int(1)));
  // NaN: the quiet bit, so that cutting the payload does not make it an infinity. (magnitude > inf) as an all-ones mask: inf - magnitude is
  // negative.
  const Ints is_nan = shift_right_signed<31>(sub(splat_int(0x7F800000), bit_and(b, splat_int(0x7FFFFFFF))));
  const Ints quiet = add(bit_xor(bit_and(b, splat_int(0x400000)), splat_int(0x400000)), b);
  const Ints chosen = bit_xor(rounded, bit_and(is_nan, bit_xor(rounded, quiet)));
  store_low16(p, shift_right<16>(chosen));
}

void to_half(const float* x, std::size_t count, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) store_half(out + i, load(x + i));
  if (i == count) return;
  std::uint16_t tail[16];
  store_half(tail, load_first(x + i, count - i));
  for (std::size_t j = 0; i < count; ++i, ++j) out[i] = tail[j];
}

void to_bfloat16(const float* x, std::size_t count, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) store_bfloat16(out + i, load(x + i));
  if (i == count) return;
  std::uint16_t tail[16];
  store_bfloat16(tail, load_first(x + i, count - i));
  for (std::size_t j = 0; i < count; ++i, ++j) out[i] = tail[j];
}

void from_half(const std::uint16_t* x, std::size_t count, float* out) {
  std::uint16_t tail[16] = {};
  for (std::size_t i = 0; i < count; i += 16) {
    const std::size_t n = lanes_left(count, i);
    for (std::size_t j = 0; j < n; ++j) tail[j] = x[i + j];
    store_first(out + i, load_half(tail), n);
  }
}

std::uint64_t read_bytes(const std::byte* from, std::size_t count) {
  Ints a = splat_int(0), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 256 <= count; i += 256) {
    a = bit_xor(a, load_bytes(from + i));
    b = bit_xor(b, load_bytes(from + i + 64));
    c = bit_xor(c, load_bytes(from + i + 128));
    d = bit_xor(d, load_bytes(from + i + 192));
  }
  std::int32_t v[16];
  store_ints(v, bit_xor(bit_xor(a, b), bit_xor(c, d)));
  std::uint64_t mixed = 0;
  for (int i = 0; i < 16; ++i) mixed = mixed * 31 + static_cast<std::uint32_t>(v[i]);
  return mixed;
}

constexpr int kProbeSums = static_cast<int>(kProbeOperations / 16);

float multiply_floats(std::size_t rounds) {
  const Floats x = splat(0.5f);
  Floats sums[kProbeSums];
  for (Floats& sum : sums) sum = zero();
  for (std::size_t round = 0; round < rounds; ++round) {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kProbeSums; ++i) sums[i] = fma(x, sums[i], x);
  }
  for (int i = 1; i < kProbeSums; ++i) sums[0] = add(sums[0], sums[i]);
  return sum_lanes(sums[0]);
}

std::int32_t multiply_bytes(std::size_t rounds) {
  const Ints change = splat_int(0x01020304), w = splat_int(0x0F010203);
  Ints x = change, sums[kProbeSums];
  for (Ints& sum : sums) sum = splat_int(0);
  for (std::size_t round = 0; round < rounds; ++round) {
    x = bit_xor(x, change);  // else the products would be done once, before the loop
    LOCKSTEP_UNROLL
    for (int i = 0; i < kProbeSums; ++i) sums[i] = unsigned_dot(sums[i], i % 2 == 0 ? w : change, x);
  }
  for (int i = 1; i < kProbeSums; ++i) sums[0] = add(sums[0], sums[i]);
  std::int32_t both[2];
  store_sums(both, sums[0], sums[0]);
  return both[0];
}
