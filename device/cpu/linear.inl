// Matrix products over packed panels. A tile is P panels x T tokens; its sums stay in registers over a whole leaf. Lanes are output rows,
// so the order of every sum is the same for each P and T, and the choice of the tile changes no bit. Bytes moved per call: the panels once
// per kTokenBlock tokens. Operations: 2 * rows * columns * tokens.

#define LOCKSTEP_BLOCK_TYPES(each)                                                                                                      \
  each(kQ8_0) each(kQ4_0) each(kQ4_1) each(kQ5_0) each(kQ5_1) each(kQ2_K) each(kQ3_K) each(kQ4_K) each(kQ5_K) each(kQ6_K) each(kIQ4_NL) \
      each(kIQ4_XS) each(kMXFP4)

constexpr bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

LOCKSTEP_INLINE std::int32_t load_i32(const std::int8_t* p) {
  std::int32_t value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

LOCKSTEP_INLINE Floats load_bfloat16(const std::uint16_t* p) { return from_bits(shift_left<16>(load_u16(p))); }

template <DType kType>
LOCKSTEP_INLINE Floats load_weights(const std::byte* p, std::size_t element) {
  if constexpr (kType == DType::kF32) return load(reinterpret_cast<const float*>(p) + element);
  const std::uint16_t* halves = reinterpret_cast<const std::uint16_t*>(p) + element;
  if constexpr (kType == DType::kF16) return load_half(halves);
  return load_bfloat16(halves);
}

/// Where a tile stands. Floats: `weights` is the record of column `first_column` of its first panel, `row_stride` the rows of a record.
/// Blocks: panel p is p * panel_bytes on.
struct TilePlace {
  const std::byte* weights;
  std::size_t row_stride;
  std::size_t panel_bytes;
  std::size_t row;    // of the output
  std::size_t token;  // first one
  std::size_t first_column;
};

/// Asks for the cache lines at p, p + 64 and so on, below p + kBytes.
template <std::size_t kBytes>
LOCKSTEP_INLINE void prefetch_lines(const std::byte* p) {
  LOCKSTEP_UNROLL
  for (std::size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// One token reads weights as fast as memory gives them: a core that computes between its loads asks for too little at once, and its own
/// prefetchers end at each 4 KiB. So lines are asked for ahead, over the end of a weight too: the next one of the step follows there.
template <std::size_t kBytes>
LOCKSTEP_INLINE void prefetch_stream(const std::byte* p) {
  constexpr std::size_t kAhead = 2048;
  prefetch_lines<kBytes>(p + kAhead);
}

#include "device/cpu/linear_blocks.inl"

template <DType kType, int P, int T>
LOCKSTEP_INLINE void float_body(const LinearArgs& args, const TilePlace& at, std::size_t from, std::size_t to, Floats (&sums)[P][T]) {
  constexpr std::size_t kElement = kType == DType::kF32 ? 4 : 2;
  const float* x = args.floats + at.token * args.columns;
  for (std::size_t k = from; k < to; ++k) {
    Floats w[P];
    if constexpr (T == 1) prefetch_stream<16 * P * kElement>(at.weights + (k - at.first_column) * at.row_stride * kElement);
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p)
      w[p] = load_weights<kType>(at.weights, (k - at.first_column) * at.row_stride + 16 * static_cast<std::size_t>(p));
    LOCKSTEP_UNROLL
    for (int t = 0; t < T; ++t) {
      const Floats value = splat(x[static_cast<std::size_t>(t) * args.columns + k]);
      LOCKSTEP_UNROLL
      for (int p = 0; p < P; ++p) sums[p][t] = fma(value, w[p], sums[p][t]);
    }
  }
}

template <int P, int T>
LOCKSTEP_INLINE void clear(Floats (&sums)[P][T]) {
  LOCKSTEP_UNROLL
  for (int p = 0; p < P; ++p) {
    LOCKSTEP_UNROLL
    for (int t = 0; t < T; ++t) sums[p][t] = zero();
  }
}

template <DType kType, int P, int T>
LOCKSTEP_INLINE void tile_body(const LinearArgs& args, const TilePlace& at, std::size_t from, std::size_t to, Floats (&sums)[P][T]) {
  clear<P, T>(sums);
  if constexpr (is_float(kType)) {
    float_body<kType, P, T>(args, at, from, to, sums);
  } else {
    block_body<kType, P, T>(args, at, from / 32, to / 32, sums);
  }
}

template <int P, int T>
LOCKSTEP_INLINE void store_tile(const LinearArgs& args, const TilePlace& at, std::size_t root, const Floats (&sums)[P][T]) {
  LOCKSTEP_UNROLL
  for (int p = 0; p < P; ++p) {
    const std::size_t row = at.row + 16 * static_cast<std::size_t>(p);
    const std::size_t count = args.rows - row < 16 ? args.rows - row : 16;
    LOCKSTEP_UNROLL
    for (int t = 0; t < T; ++t) {
      float* out = args.out + (root * args.num_tokens + at.token + static_cast<std::size_t>(t)) * args.out_stride + row;
      Floats sum = sums[p][t];
      if (args.bias) sum = add(sum, load_first(args.bias + row, count));
      if (count == 16) {
        store(out, sum);
      } else {
        store_first(out, sum, count);
      }
    }
  }
}

template <DType kType, int P, int T>
LOCKSTEP_NOINLINE void tile(const LinearArgs& args, const TilePlace& at) {
  if (args.num_leaves == 1) {
    Floats sums[P][T];
    tile_body<kType, P, T>(args, at, 0, args.columns, sums);
    store_tile<P, T>(args, at, 0, sums);
    return;
  }
  Floats open[kMaxOpenSums][P][T];
  std::size_t depth = 0, root = 0, begin = 0;
  for (std::size_t leaf = 0; leaf < args.num_leaves; ++leaf) {
    Floats sums[P][T];
    tile_body<kType, P, T>(args, at, begin, args.leaves[leaf].end, sums);
    begin = args.leaves[leaf].end;
    for (std::uint32_t merge = 0; merge < args.leaves[leaf].merges; ++merge) {
      --depth;
      LOCKSTEP_UNROLL
      for (int p = 0; p < P; ++p) {
        LOCKSTEP_UNROLL
        for (int t = 0; t < T; ++t) sums[p][t] = add(open[depth][p][t], sums[p][t]);
      }
    }
    if (args.leaves[leaf].ends_root) {
      store_tile<P, T>(args, at, root++, sums);
      continue;
    }
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      LOCKSTEP_UNROLL
      for (int t = 0; t < T; ++t) open[depth][p][t] = sums[p][t];
    }
    ++depth;
  }
}

constexpr std::size_t kStepColumns = 128;  // 32 KiB of fp32 weights
constexpr std::size_t kSumsSize = (kMaxOpenSums + 1) * kTokenBlock * 16 * kWidePanel;

/// A batch of tokens walks over a wide panel in steps of some columns, so that the weights are read in order and then stay in the nearest
/// cache until every token has seen them. Between the steps the sums wait in memory.
struct Step {
  std::size_t from, to;  // columns
  bool begins_leaf, ends_leaf;
  std::uint32_t merges;  // when the leaf ends
  bool ends_root;
  std::size_t depth, root;  // sums that are open below; the next root
  std::size_t token, row;   // the first ones of the token block and of the wide panel
  float* sums;              // [depth][kTokenBlock][16 * kWidePanel]
};

template <DType kType, int P, int T>
LOCKSTEP_NOINLINE void step_tile(const LinearArgs& args, const TilePlace& at, const Step& step) {
  constexpr std::size_t kRow = 16 * kWidePanel, kLevel = kTokenBlock * kRow;
  float* own = step.sums + step.depth * kLevel + (at.token - step.token) * kRow + (at.row - step.row);
  Floats sums[P][T];
  if (step.begins_leaf) {
    clear<P, T>(sums);
  } else {
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      LOCKSTEP_UNROLL
      for (int t = 0; t < T; ++t) sums[p][t] = load(own + t * kRow + p * 16);
    }
  }
  float_body<kType, P, T>(args, at, step.from, step.to, sums);
  for (std::uint32_t merge = 0; step.ends_leaf && merge < step.merges; ++merge) {
    own -= kLevel;
    LOCKSTEP_UNROLL
    for (int p = 0; p < P; ++p) {
      LOCKSTEP_UNROLL
      for (int t = 0; t < T; ++t) sums[p][t] = add(load(own + t * kRow + p * 16), sums[p][t]);
    }
  }
  if (step.ends_leaf && step.ends_root) return store_tile<P, T>(args, at, step.root, sums);
  LOCKSTEP_UNROLL
  for (int p = 0; p < P; ++p) {
    LOCKSTEP_UNROLL
    for (int t = 0; t < T; ++t) store(own + t * kRow + p * 16, sums[p][t]);
  }
}

template <DType kType, int P, int T>
LOCKSTEP_INLINE void any_tile(const LinearArgs& args, const TilePlace& at, const Step* step) {
  if constexpr (is_float(kType)) {
    step_tile<kType, P, T>(args, at, *step);
  } else {
    tile<kType, P, T>(args, at);
  }
}

/// P panels for the tokens [from, to), in tiles of at most T tokens.
template <DType kType, int P, int T>
LOCKSTEP_INLINE void tiles_over_tokens(const LinearArgs& args, TilePlace at, std::size_t from, std::size_t to, const Step* step) {
  at.token = from;
  for (; at.token + T <= to; at.token += T) any_tile<kType, P, T>(args, at, step);
  if constexpr (T > 8) {
    for (; at.token + 8 <= to; at.token += 8) any_tile<kType, P, 8>(args, at, step);
  }
  if constexpr (T > 6) {
    for (; at.token + 6 <= to; at.token += 6) any_tile<kType, P, 6>(args, at, step);
  }
  if constexpr (T > 4) {
    for (; at.token + 4 <= to; at.token += 4) any_tile<kType, P, 4>(args, at, step);
  }
  if constexpr (T > 3) {
    for (; at.token + 3 <= to; at.token += 3) any_tile<kType, P, 3>(args, at, step);
  }
  if constexpr (T > 2) {
    for (; at.token + 2 <= to; at.token += 2) any_tile<kType, P, 2>(args, at, step);
  }
  for (; at.token < to; ++at.token) any_tile<kType, P, 1>(args, at, step);
}

/// One token and a wide panel of `width`: one stream, as many sums as hide the latency of the fused multiply-add.
template <DType kType>
LOCKSTEP_INLINE void float_panel_of_one(const LinearArgs& args, const TilePlace& at, std::size_t width) {
  if (width == 4) tile<kType, 4, 1>(args, at);
  if (width == 3) tile<kType, 3, 1>(args, at);
  if (width == 2) tile<kType, 2, 1>(args, at);
  if (width == 1) tile<kType, 1, 1>(args, at);
}

template <DType kType>
LOCKSTEP_INLINE void float_step(const LinearArgs& args, TilePlace at, std::size_t width, std::size_t to, const Step& step) {
  constexpr int kTogether = kAccumulators >= 16 ? 4 : 1;
  constexpr int kTokens = kAccumulators / kTogether;
  constexpr std::size_t kElement = kType == DType::kF32 ? 4 : 2;
  std::size_t panel = 0;
  if (kTogether == 1 && to - step.token <= 16) {
    // For a few tokens the memory is what counts, and one panel at a time would read every fourth line or so.
    for (; panel + 2 <= width; panel += 2) {
      tiles_over_tokens<kType, 2, 2>(args, at, step.token, to, &step);
      at.weights += 32 * kElement;
      at.row += 32;
    }
  }
  for (; panel + kTogether <= width; panel += kTogether) {
    tiles_over_tokens<kType, kTogether, kTokens>(args, at, step.token, to, &step);
    at.weights += 16 * kElement * kTogether;
    at.row += 16 * kTogether;
  }
  if constexpr (kTogether > 1) {
    for (; panel < width; ++panel) {
      tiles_over_tokens<kType, 1, 6>(args, at, step.token, to, &step);
      at.weights += 16 * kElement;
      at.row += 16;
    }
  }
}

/// The columns of all leaves, in steps. Where the weights are blocks (`expanded`), those of a step are expanded first.
template <DType kType>
LOCKSTEP_INLINE void float_panel(const LinearArgs& args, const TilePlace& at, std::size_t width, std::size_t from, std::size_t to,
                                 float* sums, float* expanded) {
  constexpr std::size_t kElement = kType == DType::kF32 ? 4 : 2;
  std::size_t begin = 0, depth = 0, root = 0;
  for (std::size_t i = 0; i < args.num_leaves; ++i) {
    const Leaf& leaf = args.leaves[i];
    for (std::size_t k = begin; k < leaf.end; k += kStepColumns) {
      const std::size_t end = k + kStepColumns < leaf.end ? k + kStepColumns : leaf.end;
      const Step step{k, end, k == begin, end == leaf.end, leaf.merges, leaf.ends_root, depth, root, from, at.row, sums};
      TilePlace here = at;
      here.first_column = k;
      if (expanded != nullptr) {
        for (std::size_t p = 0; p < width; ++p)
          expand(args.dtype, at.weights + p * at.panel_bytes, args.first_block, k / 32, end / 32, expanded + 16 * p, at.row_stride);
        here.weights = reinterpret_cast<const std::byte*>(expanded);
      } else {
        here.weights += k * at.row_stride * kElement;
      }
      float_step<kType>(args, here, width, to, step);
    }
    begin = leaf.end;
    depth = leaf.ends_root ? 0 : depth + 1 - leaf.merges;
    root += leaf.ends_root ? 1 : 0;
  }
}

/// @param weights panel `first`
template <DType kType>
LOCKSTEP_INLINE void float_linear(const LinearArgs& args, const std::byte* weights, std::size_t first, std::size_t end, float* sums,
                                  float* expanded) {
  constexpr std::size_t kElement = kType == DType::kF32 ? 4 : 2;
  const std::size_t panel_bytes = expanded == nullptr ? 16 * args.columns * kElement : args.panel_bytes;
  for (std::size_t from = 0; from < args.num_tokens; from += kTokenBlock) {
    const std::size_t to = from + kTokenBlock < args.num_tokens ? from + kTokenBlock : args.num_tokens;
    for (std::size_t panel = first; panel < end; panel += kWidePanel) {
      const std::size_t width = end - panel < kWidePanel ? end - panel : kWidePanel;
      const TilePlace at{weights + (panel - first) * panel_bytes, 16 * width, panel_bytes, panel * 16, from, 0};
      if (args.num_tokens == 1 && expanded == nullptr) {
        float_panel_of_one<kType>(args, at, width);
      } else {
        float_panel<kType>(args, at, width, from, to, sums, expanded);
      }
    }
  }
}

/// One panel at a time: one stream of weights, and what it takes to unpack them is shared by as many tokens as the registers hold.
template <DType kType>
LOCKSTEP_INLINE void block_linear(const LinearArgs& args, const std::byte* weights, std::size_t first, std::size_t end) {
  constexpr int kTokens = kAccumulators >= 16 ? 12 : 4;
  for (std::size_t from = 0; from < args.num_tokens; from += kTokenBlock) {
    const std::size_t to = from + kTokenBlock < args.num_tokens ? from + kTokenBlock : args.num_tokens;
    TilePlace at{weights, 16, args.panel_bytes, first * 16, from, 0};
    for (std::size_t panel = first; panel < end; ++panel) {
      tiles_over_tokens<kType, 1, kTokens>(args, at, from, to, nullptr);
      at.weights += args.panel_bytes;
      at.row += 16;
    }
  }
}

void linear(const LinearArgs& args, const std::byte* weights, std::size_t first, std::size_t end, std::byte* scratch) {
  // On a cache line: what is expanded is read many times.
  float* sums = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(scratch) + 63) / 64 * 64);
  if (args.floats != nullptr && !is_float(args.dtype)) return float_linear<DType::kF32>(args, weights, first, end, sums, sums + kSumsSize);
  switch (args.dtype) {
    case DType::kF32: return float_linear<DType::kF32>(args, weights, first, end, sums, nullptr);
    case DType::kF16: return float_linear<DType::kF16>(args, weights, first, end, sums, nullptr);
    case DType::kBF16: return float_linear<DType::kBF16>(args, weights, first, end, sums, nullptr);
#define LOCKSTEP_CASE(type) \
  case DType::type: return block_linear<DType::type>(args, weights, first, end);
      LOCKSTEP_BLOCK_TYPES(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
  }
}

std::size_t linear_scratch_bytes(const LinearArgs& args) {
  const bool expands = args.floats != nullptr && !is_float(args.dtype);
  if (args.floats == nullptr || (args.num_tokens == 1 && !expands)) return 0;
  return (kSumsSize + (expands ? kStepColumns * 16 * kWidePanel : 0)) * sizeof(float) + 64;
}
