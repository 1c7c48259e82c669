// Products over block-quantised panels (panel_layout.h): int8 activations, exact integer dots, and the expansion to fp32 that float
// activations and the embedding need.

constexpr const PanelLayout& layout_of(DType dtype) {
  return kPanelLayouts[static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::kQ8_0)];
}
constexpr std::size_t block_bytes(DType dtype) {  // of 16 rows x 32 columns, without the super header
  return layout_of(dtype).header_bytes + 64 * static_cast<std::size_t>(layout_of(dtype).low_bits + layout_of(dtype).high_bits);
}
constexpr bool is_signed(DType dtype) { return layout_of(dtype).low_bits == 8 || layout_of(dtype).table; }
constexpr bool is_wide(DType dtype) { return layout_of(dtype).low_bits == 4 && !layout_of(dtype).halves; }  // planes span the block
constexpr bool subtracts(DType dtype) { return layout_of(dtype).super_bytes > 0; }                          // the minimum

/// Of block `block` of a panel.
struct BlockPlace {
  std::size_t super;   // offset of its super header
  std::size_t header;  // offset of its own
  int part;            // of its super-block
};

template <DType kType>
LOCKSTEP_INLINE BlockPlace place_of(std::size_t first_block, std::size_t block) {
  constexpr std::size_t kSuper = layout_of(kType).super_bytes, kBytes = block_bytes(kType);
  if constexpr (kSuper == 0) return {0, block * kBytes, 0};
  const std::size_t place = block + first_block, number = place / kSuperBlocks;
  const std::size_t begin = number == 0 ? 0 : number * kSuperBlocks - first_block;
  return {begin * kBytes + number * kSuper, block * kBytes + (number + 1) * kSuper, static_cast<int>(place % kSuperBlocks)};
}

LOCKSTEP_INLINE Floats half_values(const std::byte* p) { return load_half(reinterpret_cast<const std::uint16_t*>(p)); }

/// The scales of 16 rows of a block, all exact. With halves: of columns 0 to 15 and 16 to 31, to be multiplied by `scale` or `minimum`.
struct BlockScales {
  Floats scale, minimum;
  Floats first, second, first_minimum, second_minimum;
};

template <DType kType>
LOCKSTEP_INLINE BlockScales load_scales(const std::byte* panel, const BlockPlace& place) {
  constexpr PanelLayout kLayout = layout_of(kType);
  const std::byte* super = panel + place.super;
  const std::byte* header = panel + place.header;
  BlockScales s{zero(), zero(), zero(), zero(), zero(), zero()};
  if constexpr (kType == DType::kMXFP4) {
    s.scale = load_bfloat16(reinterpret_cast<const std::uint16_t*>(header));
  } else if constexpr (kLayout.super_bytes == 0) {
    s.scale = half_values(header);
    if constexpr (kLayout.minimum) s.minimum = half_values(header + 32);
  } else if constexpr (kType == DType::kIQ4_XS) {
    s.scale = mul(half_values(super), to_floats(load_i8(header)));
  } else if constexpr (kLayout.halves) {
    s.scale = half_values(super);
    const Ints first = load_i8(header), second = load_i8(header + 16);
    if constexpr (kLayout.minimum) {
      const Ints nibble = splat_int(15);
      s.minimum = half_values(super + 32);
      s.first = to_floats(bit_and(first, nibble));
      s.second = to_floats(bit_and(second, nibble));
      s.first_minimum = to_floats(bit_and(shift_right<4>(first), nibble));
      s.second_minimum = to_floats(bit_and(shift_right<4>(second), nibble));
    } else {
      s.first = to_floats(first);
      s.second = to_floats(second);
    }
  } else {
    const int shift = 4 * place.part;
    const Ints scale = shift_right_by(load_bytes(super + 64), shift), minimum = shift_right_by(load_bytes(super + 128), shift);
    const Ints upper = shift_right_by(load_bytes(super + 192), shift), nibble = splat_int(15);
    const Ints whole_scale = bit_merge(bit_and(scale, nibble), shift_left<4>(upper), splat_int(0x30));
    const Ints whole_minimum = bit_merge(bit_and(minimum, nibble), shift_left<2>(upper), splat_int(0x30));
    s.scale = mul(half_values(super), to_floats(whole_scale));
    s.minimum = mul(half_values(super + 32), to_floats(whole_minimum));
  }
  return s;
}

template <int N>
LOCKSTEP_INLINE Ints shifted_right(Ints x) {
  if constexpr (N > 0) return shift_right<N>(x);
  if constexpr (N < 0) return shift_left<-N>(x);
  return x;
}

/// Quad kQuad of a block, as stored. `planes` stands behind the header.
template <DType kType, int kQuad>
LOCKSTEP_INLINE Ints stored_quad(const std::byte* planes) {
  constexpr PanelLayout kLayout = layout_of(kType);
  constexpr int kPlane = kLayout.low_bits == 8 ? kQuad : kLayout.low_bits == 2 ? kQuad / 4 : kLayout.halves ? kQuad / 2 : kQuad % 4;
  constexpr int kField = kLayout.low_bits == 8 ? 0 : kLayout.low_bits == 2 ? kQuad % 4 : kLayout.halves ? kQuad % 2 : kQuad / 4;
  Ints quad = load_bytes(planes + (kLayout.high_bits + kPlane) * 64);
  if constexpr (kLayout.low_bits < 8) {
    constexpr int kMask = kLayout.low_bits == 4 ? 0x0F0F0F0F : 0x03030303;
    quad = bit_and(shifted_right<kField * kLayout.low_bits>(quad), splat_int(kMask));
  }
  if constexpr (kLayout.high_bits == 1) {
    const Ints high = shifted_right<kQuad - kLayout.low_bits>(load_bytes(planes));
    quad = bit_merge(quad, high, splat_int(0x01010101 << kLayout.low_bits));
  } else if constexpr (kLayout.high_bits == 2) {
    const Ints high = shifted_right<kQuad % 4 * 2 - kLayout.low_bits>(load_bytes(planes + kQuad / 4 * 64));
    quad = bit_merge(quad, high, splat_int(0x03030303 << kLayout.low_bits));
  }
  return quad;
}

template <DType kType>
LOCKSTEP_INLINE Ints value_table(std::int8_t flip) {
  if constexpr (!layout_of(kType).table) return splat_int(0);
  return load_table(kType == DType::kMXFP4 ? kMxfp4Values : kIq4Values, flip);
}

/// Two quads of a block, those of one plane where a plane has two. kPiece = 0 .. 3.
template <DType kType, int kPiece, int P, int T>
LOCKSTEP_INLINE void dot_piece(const std::byte* const (&planes)[P], const std::int8_t* x, std::size_t x_stride, Ints table,
                               Ints (&narrow)[P][T], Ints (&dots)[P][T]) {
  constexpr int kFirst = is_wide(kType) ? kPiece : 2 * kPiece, kSecond = is_wide(kType) ? kPiece + 4 : 2 * kPiece + 1;
  Ints first[P], second[P], first_prepared[P], second_prepared[P];
  LOCKSTEP_UNROLL
  for (int p = 0; p < P; ++p) {
    first[p] = stored_quad<kType, kFirst>(planes[p]);
    second[p] = stored_quad<kType, kSecond>(planes[p]);
    if constexpr (layout_of(kType).table) {
      first[p] = look_up(table, first[p]);
      second[p] = look_up(table, second[p]);
    }
    if constexpr (is_signed(kType)) {
      first_prepared[p] = q8_prepare(first[p]);
      second_prepared[p] = q8_prepare(second[p]);
    }
  }
  LOCKSTEP_UNROLL
  for (int t = 0; t < T; ++t) {
    const std::int8_t* quants = x + static_cast<std::size_t>(t) * x_stride;
    const Ints x_first = splat_int(load_i32(quants + 4 * kFirst)), x_second = splat_int(load_i32(quants + 4 * kSecond));
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      if constexpr (is_signed(kType)) {
        dots[p][t] = q8_dot(q8_dot(dots[p][t], first[p], first_prepared[p], x_first), second[p], second_prepared[p], x_second);
      } else if constexpr (kNarrowDots) {
        narrow[p][t] = unsigned_dot(unsigned_dot(narrow[p][t], first[p], x_first), second[p], x_second);
      } else {
        dots[p][t] = unsigned_dot(unsigned_dot(dots[p][t], first[p], x_first), second[p], x_second);
      }
    }
  }
  if constexpr (kNarrowDots && !is_signed(kType)) {
    // A quad adds 2 * 127 times the largest number at most, and an int16 holds 32,767.
    constexpr int kLargest = (1 << (layout_of(kType).low_bits + layout_of(kType).high_bits)) - 1;
    constexpr int kPieces = 32767 / (2 * 127 * kLargest) / 2, kOfDot = layout_of(kType).halves ? kPiece % 2 : kPiece;
    constexpr bool kLast = kOfDot == (layout_of(kType).halves ? 1 : 3);
    if constexpr (kLast || (kOfDot + 1) % kPieces == 0) {
      LOCKSTEP_UNROLL
      for (int p = 0; p < P; ++p) {
        LOCKSTEP_UNROLL
        for (int t = 0; t < T; ++t) {
          dots[p][t] = add(dots[p][t], widen(narrow[p][t]));
          narrow[p][t] = splat_int(0);
        }
      }
    }
  }
}

/// Starts the dots of a block (half 0 or 1 where there are halves): what is taken off every number, times the sum of the activations.
template <DType kType, int P, int T>
LOCKSTEP_INLINE void start_dots(const std::int32_t* sums, std::size_t sums_stride, int half, Ints (&narrow)[P][T], Ints (&dots)[P][T]) {
  constexpr PanelLayout kLayout = layout_of(kType);
  constexpr std::int32_t kZero = is_signed(kType) ? (kQ8Offset ? 128 : 0) : kLayout.zero;
  LOCKSTEP_UNROLL
  for (int t = 0; t < T; ++t) {
    const std::int32_t* of_token = sums + static_cast<std::size_t>(t) * sums_stride;
    Ints start = splat_int(0);
    if constexpr (kZero != 0) start = splat_int(-kZero * (kLayout.halves ? of_token[half] : of_token[0] + of_token[1]));
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      dots[p][t] = start;
      narrow[p][t] = splat_int(0);
    }
  }
}

template <DType kType, int P, int T>
LOCKSTEP_INLINE void block_body(const LinearArgs& args, const TilePlace& at, std::size_t from, std::size_t to, Floats (&sums)[P][T]) {
  constexpr PanelLayout kLayout = layout_of(kType);
  const Int8View& in = args.int8;
  const Ints table = value_table<kType>(kQ8Offset ? -128 : 0);
  for (std::size_t block = from; block < to; ++block) {
    const BlockPlace place = place_of<kType>(args.first_block, block);
    const std::size_t entry = at.token * in.blocks + block;
    const std::int8_t* x = in.quants + at.token * in.stride + block * 32;
    const std::byte* planes[P];
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) planes[p] = at.weights + static_cast<std::size_t>(p) * at.panel_bytes + place.header + kLayout.header_bytes;
    if constexpr (T == 1) prefetch_stream<block_bytes(kType)>(at.weights + place.header);
    Ints narrow[P][T], dots[P][T];
    Floats first_half[P][T];
    start_dots<kType, P, T>(in.sums + 2 * entry, 2 * in.blocks, 0, narrow, dots);
    dot_piece<kType, 0, P, T>(planes, x, in.stride, table, narrow, dots);
    dot_piece<kType, 1, P, T>(planes, x, in.stride, table, narrow, dots);
    if constexpr (kLayout.halves) {
      LOCKSTEP_UNROLL
      for (int p = 0; p < P; ++p) {
        LOCKSTEP_UNROLL
        for (int t = 0; t < T; ++t) first_half[p][t] = to_floats(dots[p][t]);
      }
      start_dots<kType, P, T>(in.sums + 2 * entry, 2 * in.blocks, 1, narrow, dots);
    }
    dot_piece<kType, 2, P, T>(planes, x, in.stride, table, narrow, dots);
    dot_piece<kType, 3, P, T>(planes, x, in.stride, table, narrow, dots);
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      const BlockScales s = load_scales<kType>(at.weights + static_cast<std::size_t>(p) * at.panel_bytes, place);
      LOCKSTEP_UNROLL
      for (int t = 0; t < T; ++t) {
        const std::size_t i = entry + static_cast<std::size_t>(t) * in.blocks;
        Floats dot = to_floats(dots[p][t]);
        if constexpr (kLayout.halves) dot = fma(dot, s.second, mul(first_half[p][t], s.first));  // below 2^24: exact
        sums[p][t] = fma(dot, mul(s.scale, splat(in.scales[i])), sums[p][t]);
        if constexpr (kLayout.halves && kLayout.minimum) {
          const Floats first = mul(s.first_minimum, splat(static_cast<float>(in.sums[2 * i])));
          const Floats whole = fma(s.second_minimum, splat(static_cast<float>(in.sums[2 * i + 1])), first);
          sums[p][t] = fma(whole, mul(s.minimum, splat(-in.scales[i])), sums[p][t]);
        } else if constexpr (kLayout.minimum) {
          sums[p][t] = fma(s.minimum, splat(subtracts(kType) ? -in.scaled_sums[i] : in.scaled_sums[i]), sums[p][t]);
        }
      }
    }
  }
}

template <int kByte, bool kSigned>
LOCKSTEP_INLINE Ints byte_of(Ints quad) {
  if constexpr (kSigned) return shift_right_signed<24>(shifted_right<8 * kByte - 24>(quad));
  return bit_and(shifted_right<8 * kByte>(quad), splat_int(255));
}

template <DType kType, int kQuad, int kByte>
LOCKSTEP_INLINE void expand_column(Ints quad, Floats scale, Floats minimum, float* out, std::size_t row_stride) {
  constexpr PanelLayout kLayout = layout_of(kType);
  Ints number = byte_of<kByte, is_signed(kType)>(quad);
  if constexpr (kLayout.zero != 0) number = sub(number, splat_int(kLayout.zero));
  Floats value = mul(to_floats(number), scale);  // exact
  if constexpr (kLayout.minimum) value = subtracts(kType) ? sub(value, minimum) : add(value, minimum);
  store(out + static_cast<std::size_t>(4 * kQuad + kByte) * row_stride, value);
}

template <DType kType, int kQuad>
LOCKSTEP_INLINE void expand_quad(const std::byte* planes, Ints table, const BlockScales& s, float* out, std::size_t row_stride) {
  constexpr PanelLayout kLayout = layout_of(kType);
  Floats scale = s.scale, minimum = s.minimum;
  if constexpr (kLayout.halves) {
    scale = mul(scale, kQuad < 4 ? s.first : s.second);
    if constexpr (kLayout.minimum) minimum = mul(minimum, kQuad < 4 ? s.first_minimum : s.second_minimum);
  }
  Ints quad = stored_quad<kType, kQuad>(planes);
  if constexpr (kLayout.table) quad = look_up(table, quad);
  if constexpr (kLayout.low_bits == 8 && kQ8Offset) quad = bit_xor(quad, splat_int(static_cast<std::int32_t>(0x80808080u)));
  expand_column<kType, kQuad, 0>(quad, scale, minimum, out, row_stride);
  expand_column<kType, kQuad, 1>(quad, scale, minimum, out, row_stride);
  expand_column<kType, kQuad, 2>(quad, scale, minimum, out, row_stride);
  expand_column<kType, kQuad, 3>(quad, scale, minimum, out, row_stride);
}

/// One block of a panel as fp32, the bits of dequantise(): out[column * row_stride + row].
template <DType kType>
LOCKSTEP_INLINE void expand_block(const std::byte* panel, std::size_t first_block, std::size_t block, float* out, std::size_t row_stride) {
  const BlockPlace place = place_of<kType>(first_block, block);
  const BlockScales s = load_scales<kType>(panel, place);
  const Ints table = value_table<kType>(0);
  const std::byte* planes = panel + place.header + layout_of(kType).header_bytes;
  expand_quad<kType, 0>(planes, table, s, out, row_stride);
  expand_quad<kType, 1>(planes, table, s, out, row_stride);
  expand_quad<kType, 2>(planes, table, s, out, row_stride);
  expand_quad<kType, 3>(planes, table, s, out, row_stride);
  expand_quad<kType, 4>(planes, table, s, out, row_stride);
  expand_quad<kType, 5>(planes, table, s, out, row_stride);
  expand_quad<kType, 6>(planes, table, s, out, row_stride);
  expand_quad<kType, 7>(planes, table, s, out, row_stride);
}

template <DType kType>
LOCKSTEP_NOINLINE void expand_blocks(const std::byte* panel, std::size_t first_block, std::size_t from, std::size_t to, float* out,
                                     std::size_t row_stride) {
  for (std::size_t block = from; block < to; ++block)
    expand_block<kType>(panel, first_block, block, out + (block - from) * 32 * row_stride, row_stride);
}

/// Blocks [from, to) of a panel.
LOCKSTEP_NOINLINE void expand(DType dtype, const std::byte* panel, std::size_t first_block, std::size_t from, std::size_t to, float* out,
                              std::size_t row_stride) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return;
#define LOCKSTEP_CASE(type) \
  case DType::type: return expand_blocks<DType::type>(panel, first_block, from, to, out, row_stride);
      LOCKSTEP_BLOCK_TYPES(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
  }
}

void expand_row(DType dtype, const std::byte* panel, std::size_t columns, std::size_t row, float* out) {
  float block[32 * 16];
  for (std::size_t at = 0; at < columns / 32; ++at) {
    expand(dtype, panel, 0, at, at + 1, block, 16);
    for (std::size_t i = 0; i < 32; ++i) out[at * 32 + i] = block[i * 16 + row];
  }
}
