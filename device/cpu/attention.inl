// Attention of up to kQueryBlock queries that share a KV head, span after span. Scores: lanes are keys. Values: lanes are dims. Every sum
// is a chain of its own, so how many queries, groups of keys or dims go together changes no bit. Bytes moved: the keys and values of the
// spans, once a block of queries. Operations: 4 * head_dim a query and key.

constexpr std::size_t kGroups = kSpan / 16;  // groups of 16 keys of a span
constexpr int kQueriesTogether = 4;

LOCKSTEP_INLINE std::size_t round_up_16(std::size_t n) { return (n + 15) / 16 * 16; }

/// The 16 keys, and the 16 values, of each group of the span that is being worked on, and their scales if they have such.
struct SpanPlace {
  const std::byte* keys[kGroups];
  const std::byte* values[kGroups];
  const float* key_scales[kGroups];
  const float* value_scales[kGroups];
  std::uint32_t first_position;
};

struct KeyRange {
  std::uint32_t from, to;  // within the span
};

LOCKSTEP_INLINE KeyRange keys_of(const QueryBlock& block, std::size_t query, std::size_t span) {
  const std::uint32_t end = block.positions[query] + 1;
  const std::uint32_t begin = block.window != 0 && end > block.window ? end - block.window : 0;
  const std::uint32_t span_begin = static_cast<std::uint32_t>(span * kSpan), span_end = span_begin + kSpan;
  const std::uint32_t from = begin > span_begin ? begin : span_begin, to = end < span_end ? end : span_end;
  if (from >= to) return {0, 0};
  return {from - span_begin, to - span_begin};
}

/// Decode reads every key and value once, in pieces too short for a core's own prefetchers: they are asked for one phase ahead, the values
/// of a span while its scores are computed, and the keys of the next one while the values are added up.
template <CacheType kType, int Q, int G>
LOCKSTEP_INLINE void score_groups(const QueryBlock& block, std::size_t query, const SpanPlace& place, std::size_t first_group,
                                  std::size_t head_dim, bool ahead, float* scores) {
  const std::byte* const* keys = place.keys + first_group;
  const std::byte* const* values = place.values + first_group;
  [[maybe_unused]] Floats scales[G];
  if constexpr (kHasScales<kType>) {
    LOCKSTEP_UNROLL
    for (int g = 0; g < G; ++g)
      scales[g] = mul(load(place.key_scales[first_group + static_cast<std::size_t>(g)]), splat(kScaleUnit<kType>));
  }
  Floats sums[Q][G];
  LOCKSTEP_UNROLL
  for (int q = 0; q < Q; ++q) {
    LOCKSTEP_UNROLL
    for (int g = 0; g < G; ++g) sums[q][g] = zero();
  }
  for (std::size_t d = 0; d < head_dim; ++d) {
    Floats k[G];
    LOCKSTEP_UNROLL
    for (int g = 0; g < G; ++g) {
      k[g] = load_elements<kType>(keys[g], d * 16);
      if (ahead) prefetch_lines<16 * kElementBytes<kType>>(values[g] + d * 16 * kElementBytes<kType>);
      if constexpr (kHasScales<kType>) k[g] = mul(k[g], scales[g]);
    }
    LOCKSTEP_UNROLL
    for (int q = 0; q < Q; ++q) {
      const Floats x = splat(block.queries[query + static_cast<std::size_t>(q)][d]);
      LOCKSTEP_UNROLL
      for (int g = 0; g < G; ++g) sums[q][g] = fma(x, k[g], sums[q][g]);
    }
  }
  const Floats scale = splat(block.scale);
  LOCKSTEP_UNROLL
  for (int q = 0; q < Q; ++q) {
    LOCKSTEP_UNROLL
    for (int g = 0; g < G; ++g) store(scores + q * kSpan + (first_group + static_cast<std::size_t>(g)) * 16, mul(sums[q][g], scale));
  }
}

/// The soft cap, then the slope times the positions of the keys, where there are such.
LOCKSTEP_NOINLINE void bend_scores(const QueryBlock& block, std::size_t query, std::uint32_t first_position, KeyRange range,
                                   float* scores) {
  if (block.soft_cap != 0.0f) soft_cap(scores + range.from, range.to - range.from, block.soft_cap);
  if (!block.sloped) return;
  for (std::size_t g = range.from / 16; 16 * g < range.to; ++g) {
    const Floats positions = to_floats(add(lane_numbers(), splat_int(static_cast<std::int32_t>(first_position + 16 * g))));
    store(scores + 16 * g, fma(splat(block.slopes[query]), positions, load(scores + 16 * g)));
  }
}

/// Turns the scores of one query into p, and gives the maximum and the sum of p. Lanes outside `range` become 0.
LOCKSTEP_INLINE void soften(KeyRange range, float* scores, float& maximum, float& sum) {
  const std::size_t first = range.from / 16, end = (range.to + 15) / 16;
  const Floats lowest = splat(-__builtin_inff());
  Floats best = lowest;
  for (std::size_t g = first; g < end; ++g) {
    const int from = static_cast<int>(range.from) - static_cast<int>(16 * g), to = static_cast<int>(range.to) - static_cast<int>(16 * g);
    best = max_of(best, select_lanes(load(scores + 16 * g), lowest, from, to));
  }
  float lanes[16];
  store(lanes, best);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  }
  maximum = lanes[0];
  Floats total = zero();
  for (std::size_t g = first; g < end; ++g) {
    const int from = static_cast<int>(range.from) - static_cast<int>(16 * g), to = static_cast<int>(range.to) - static_cast<int>(16 * g);
    const Floats p = select_lanes(exp_of(sub(load(scores + 16 * g), splat(maximum))), zero(), from, to);
    store(scores + 16 * g, p);
    total = add(total, p);
  }
  sum = sum_lanes(total);
}

/// Adds p * v of the keys [from, to) to dims [dim, dim + 16 * C) of Q queries. Reads up to 15 dims behind head_dim: of the next key, or of
/// the pad of the cache. `next`: the groups of keys to ask for, or null.
template <CacheType kType, int Q, int C>
LOCKSTEP_INLINE void add_values(const SpanPlace& place, std::uint32_t from, std::uint32_t to, std::size_t head_dim, std::size_t dim,
                                const float* probabilities, const std::byte* const* next, float* sums, std::size_t stride) {
  Floats o[Q][C];
  LOCKSTEP_UNROLL
  for (int q = 0; q < Q; ++q) {
    LOCKSTEP_UNROLL
    for (int c = 0; c < C; ++c) o[q][c] = load(sums + static_cast<std::size_t>(q) * stride + dim + 16 * static_cast<std::size_t>(c));
  }
  for (std::uint32_t key = from; key < to;) {
    const std::byte* values = place.values[key / 16];
    [[maybe_unused]] const float* scales = place.value_scales[key / 16];
    const std::uint32_t end = (key / 16 + 1) * 16 < to ? (key / 16 + 1) * 16 : to;
    for (; key < end; ++key) {
      Floats v[C];
      if (next != nullptr)  // the same place of the next span
        prefetch_lines<16 * C * kElementBytes<kType>>(next[key / 16] + (key % 16 * head_dim + dim) * kElementBytes<kType>);
      LOCKSTEP_UNROLL
      for (int c = 0; c < C; ++c) {
        v[c] = load_elements<kType>(values, key % 16 * head_dim + dim + 16 * static_cast<std::size_t>(c));
        if constexpr (kHasScales<kType>) v[c] = mul(v[c], splat(scales[key % 16] * kScaleUnit<kType>));
      }
      LOCKSTEP_UNROLL
      for (int q = 0; q < Q; ++q) {
        const Floats p = splat(probabilities[static_cast<std::size_t>(q) * kSpan + key]);
        LOCKSTEP_UNROLL
        for (int c = 0; c < C; ++c) o[q][c] = fma(p, v[c], o[q][c]);
      }
    }
  }
  LOCKSTEP_UNROLL
  for (int q = 0; q < Q; ++q) {
    LOCKSTEP_UNROLL
    for (int c = 0; c < C; ++c) store(sums + static_cast<std::size_t>(q) * stride + dim + 16 * static_cast<std::size_t>(c), o[q][c]);
  }
}

template <CacheType kType, int Q>
LOCKSTEP_INLINE void add_values(const SpanPlace& place, std::uint32_t from, std::uint32_t to, std::size_t head_dim,
                                const float* probabilities, const std::byte* const* next, float* sums, std::size_t stride) {
  constexpr int kTogether = kAccumulators >= 16 ? 4 : Q == 1 ? 4 : Q == 2 ? 2 : 1;
  if (from >= to) return;
  std::size_t dim = 0;
  for (; dim + 16 * kTogether <= round_up_16(head_dim); dim += 16 * kTogether) {
    add_values<kType, Q, kTogether>(place, from, to, head_dim, dim, probabilities, next, sums, stride);
  }
  for (; dim < head_dim; dim += 16) add_values<kType, Q, 1>(place, from, to, head_dim, dim, probabilities, next, sums, stride);
}

/// Q queries over one span: leaves value sums, maximum, sum of p and the flag of each at `out` (`stride` floats apart). `next`: the keys of
/// the span that comes next; null: nothing is asked for ahead.
template <CacheType kType, int Q>
LOCKSTEP_NOINLINE void attend_span(const QueryBlock& block, std::size_t query, const SpanPlace& place, const KeyRange* ranges,
                                   std::size_t head_dim, const std::byte* const* next, float* scores, float* out, std::size_t stride) {
  const std::size_t padded = round_up_16(head_dim);
  std::uint32_t first = kSpan, end = 0, common_from = 0, common_to = kSpan;
  for (int q = 0; q < Q; ++q) {
    const KeyRange range = ranges[q];
    first = range.from < range.to && range.from < first ? range.from : first;
    end = range.to > end ? range.to : end;
    common_from = range.from > common_from ? range.from : common_from;
    common_to = range.to < common_to ? range.to : common_to;
  }
  std::size_t group = first / 16;
  const std::size_t end_group = (end + 15) / 16;
  if constexpr (kAccumulators >= 16) {
    if (group == 0 && end_group == kGroups) {
      score_groups<kType, Q, static_cast<int>(kGroups)>(block, query, place, 0, head_dim, next != nullptr, scores);
      group = kGroups;
    }
  }
  for (; group < end_group; ++group) score_groups<kType, Q, 1>(block, query, place, group, head_dim, next != nullptr, scores);

  for (int q = 0; q < Q; ++q) {
    float* state = out + static_cast<std::size_t>(q) * stride;
    for (std::size_t d = 0; d < padded; d += 16) store(state + d, zero());
    const bool any = ranges[q].from < ranges[q].to;
    state[padded + 2] = any ? 1.0f : 0.0f;
    if (any && (block.soft_cap != 0.0f || block.sloped))
      bend_scores(block, query + static_cast<std::size_t>(q), place.first_position, ranges[q],
                  scores + static_cast<std::size_t>(q) * kSpan);
    if (any) soften(ranges[q], scores + static_cast<std::size_t>(q) * kSpan, state[padded], state[padded + 1]);
  }
  // Keys that all Q queries see go together; those of some only, before and after, one query at a time.
  if (common_from >= common_to) common_from = common_to = kSpan;
  for (int q = 0; q < Q; ++q) {
    const std::uint32_t to = ranges[q].to < common_from ? ranges[q].to : common_from;
    add_values<kType, 1>(place, ranges[q].from, to, head_dim, scores + static_cast<std::size_t>(q) * kSpan, nullptr,
                         out + static_cast<std::size_t>(q) * stride, stride);
  }
  add_values<kType, Q>(place, common_from, common_to, head_dim, scores, next, out, stride);
  for (int q = 0; q < Q; ++q) {
    add_values<kType, 1>(place, common_to, ranges[q].to, head_dim, scores + static_cast<std::size_t>(q) * kSpan, nullptr,
                         out + static_cast<std::size_t>(q) * stride, stride);
  }
}

/// The online-softmax rule. A state without keys changes nothing.
void merge_state(float* into, const float* from, std::size_t head_dim) {
  const std::size_t padded = round_up_16(head_dim);
  if (from[padded + 2] == 0.0f) return;
  if (into[padded + 2] == 0.0f) {
    for (std::size_t d = 0; d < padded; d += 16) store(into + d, load(from + d));
    for (std::size_t i = 0; i < 3; ++i) into[padded + i] = from[padded + i];
    return;
  }
  const float larger = into[padded] > from[padded] ? into[padded] : from[padded];
  float shifts[16] = {into[padded] - larger, from[padded] - larger};
  store(shifts, exp_of(load(shifts)));
  const Floats a = splat(shifts[0]), b = splat(shifts[1]);
  for (std::size_t d = 0; d < padded; d += 16) store(into + d, fma(load(from + d), b, mul(load(into + d), a)));
  into[padded + 1] = __builtin_fmaf(from[padded + 1], shifts[1], into[padded + 1] * shifts[0]);
  into[padded] = larger;
}

void finish_state(const float* state, std::size_t head_dim, const float* sink, float* out) {
  const float maximum = state[round_up_16(head_dim)], sum = state[round_up_16(head_dim) + 1];
  if (sink == nullptr) {
    for (std::size_t d = 0; d < head_dim; d += 16) store_first(out + d, div(load(state + d), splat(sum)), lanes_left(head_dim, d));
    return;
  }
  const float larger = maximum > *sink ? maximum : *sink;
  float shifts[16] = {maximum - larger, *sink - larger};
  store(shifts, exp_of(load(shifts)));
  const Floats factor = splat(shifts[0]), all = splat(__builtin_fmaf(sum, shifts[0], shifts[1]));
  for (std::size_t d = 0; d < head_dim; d += 16) store_first(out + d, div(mul(load(state + d), factor), all), lanes_left(head_dim, d));
}

/// Groups that the block table does not reach stay null.
template <CacheType kType>
LOCKSTEP_INLINE SpanPlace place_of(const CacheView& cache, const KeysPlace& at, std::size_t span) {
  SpanPlace place = {};
  place.first_position = static_cast<std::uint32_t>(span * kSpan);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const std::size_t position = span * kSpan + 16 * g;
    if (position > at.last_position) break;
    const std::size_t offset = position % cache.block_size;
    const std::byte* keys = cache.cache + at.block_table[position / cache.block_size] * cache.block_bytes + at.kv_head * cache.head_bytes;
    const std::byte* values = keys + cache.value_offset;
    place.keys[g] = keys + offset * cache.head_dim * kElementBytes<kType>;
    place.values[g] = values + offset * cache.head_dim * kElementBytes<kType>;
    if constexpr (kHasScales<kType>) {
      place.key_scales[g] = reinterpret_cast<const float*>(keys + cache.scale_offset) + offset;
      place.value_scales[g] = reinterpret_cast<const float*>(values + cache.scale_offset) + offset;
    }
  }
  return place;
}

/// The keys that come behind those of a span: of the next one, or of what the thread does next; the same once more where there are none.
template <CacheType kType>
LOCKSTEP_INLINE void keys_behind(const CacheView& cache, const QueryBlock& block, const SpanPlace& place, std::size_t span, bool is_last,
                                 const std::byte* (&next)[kGroups]) {
  SpanPlace behind = {};
  if (!is_last) behind = place_of<kType>(cache, block.keys, span + 1);
  if (is_last && block.next_keys.block_table != nullptr) behind = place_of<kType>(cache, block.next_keys, block.next_span);
  for (std::size_t g = 0; g < kGroups; ++g) next[g] = behind.keys[g] != nullptr ? behind.keys[g] : place.keys[g];
}

/// The span as a cache of fp32 has it: where many queries walk over it, its numbers are expanded once. `to`: 2 * kSpan * head_dim floats
/// and 16 more.
template <CacheType kType>
LOCKSTEP_NOINLINE SpanPlace expand_span(const SpanPlace& place, std::size_t head_dim, float* to) {
  SpanPlace expanded = {};
  expanded.first_position = place.first_position;
  for (std::size_t g = 0; g < kGroups && place.keys[g] != nullptr; ++g) {
    float* keys = to + 16 * g * head_dim;
    const Floats scales = mul(load(place.key_scales[g]), splat(kScaleUnit<kType>));
    for (std::size_t d = 0; d < head_dim; ++d) store(keys + 16 * d, mul(load_elements<kType>(place.keys[g], 16 * d), scales));
    float* values = to + (kSpan + 16 * g) * head_dim;
    for (std::size_t key = 0; key < 16; ++key) {
      const Floats scale = splat(place.value_scales[g][key] * kScaleUnit<kType>);
      for (std::size_t d = 0; d < head_dim; d += 16) {  // what goes beyond head_dim is overwritten by the next key
        store(values + key * head_dim + d, mul(load_elements<kType>(place.values[g], key * head_dim + d), scale));
      }
    }
    expanded.keys[g] = reinterpret_cast<const std::byte*>(keys);
    expanded.values[g] = reinterpret_cast<const std::byte*>(values);
  }
  return expanded;
}

/// All queries of the block over one span. See attend; `states` is where the first query's state of this span goes. `next`: see
/// attend_span.
template <CacheType kType>
LOCKSTEP_INLINE void attend_queries(const QueryBlock& block, const SpanPlace& place, std::size_t span, std::size_t head_dim,
                                    const std::byte* const* next, float* states, std::size_t state_stride, bool merges, float* scratch) {
  float* scores = scratch;
  float* partial = scratch + kQueriesTogether * kSpan;
  const std::size_t partial_stride = round_up_16(head_dim) + kStateExtra;  // state_stride may be that of many spans
  for (std::size_t query = 0; query < block.count;) {
    const std::size_t left = block.count - query;
    const std::size_t together = left < kQueriesTogether ? left : kQueriesTogether;
    const std::byte* const* ahead = query == 0 ? next : nullptr;  // those behind the first find all in the cache
    KeyRange ranges[kQueriesTogether];
    bool any = false;
    for (std::size_t q = 0; q < together; ++q) {
      ranges[q] = keys_of(block, query + q, span);
      any = any || ranges[q].from < ranges[q].to;
    }
    float* out = merges ? partial : states + query * state_stride;
    const std::size_t stride = merges ? partial_stride : state_stride;
    if (any) {
      if (together == 4) attend_span<kType, 4>(block, query, place, ranges, head_dim, ahead, scores, out, stride);
      if (together == 3) attend_span<kType, 3>(block, query, place, ranges, head_dim, ahead, scores, out, stride);
      if (together == 2) attend_span<kType, 2>(block, query, place, ranges, head_dim, ahead, scores, out, stride);
      if (together == 1) attend_span<kType, 1>(block, query, place, ranges, head_dim, ahead, scores, out, stride);
    }
    for (std::size_t q = 0; q < together; ++q) {
      if (!any) {
        if (!merges) out[q * stride + round_up_16(head_dim) + 2] = 0.0f;
      } else if (merges) {
        merge_state(states + (query + q) * state_stride, partial + q * stride, head_dim);
      }
    }
    query += together;
  }
}

template <CacheType kType>
LOCKSTEP_INLINE void attend_type(const CacheView& cache, const QueryBlock& block, std::size_t first_span, std::size_t end_span,
                                 float* states, std::size_t state_stride, std::size_t span_stride, float* scratch) {
  const std::size_t head_dim = cache.head_dim, padded = round_up_16(head_dim);
  const bool merges = span_stride == 0;
  for (std::size_t q = 0; q < block.count && merges; ++q) states[q * state_stride + padded + 2] = 0.0f;
  for (std::size_t span = first_span; span < end_span; ++span) {
    const SpanPlace place = place_of<kType>(cache, block.keys, span);
    const std::byte* next[kGroups];
    keys_behind<kType>(cache, block, place, span, span + 1 == end_span, next);
    float* to = states + (span - first_span) * span_stride;
    if constexpr (kHasScales<kType>) {
      if (block.count > kQueriesTogether) {
        const SpanPlace expanded = expand_span<kType>(place, head_dim, scratch + kQueriesTogether * (kSpan + padded + kStateExtra));
        attend_queries<CacheType::kFloat32>(block, expanded, span, head_dim, nullptr, to, state_stride, merges, scratch);
        continue;
      }
    }
    attend_queries<kType>(block, place, span, head_dim, next, to, state_stride, merges, scratch);
  }
}

std::size_t attend_scratch_floats(std::size_t head_dim) {
  return kQueriesTogether * (kSpan + round_up_16(head_dim) + kStateExtra) + 2 * kSpan * head_dim + 16;
}

void attend(const CacheView& cache, const QueryBlock& block, std::size_t first, std::size_t end, float* states, std::size_t state_stride,
            std::size_t span_stride, float* scratch) {
#define LOCKSTEP_CASE(type) \
  case CacheType::type: return attend_type<CacheType::type>(cache, block, first, end, states, state_stride, span_stride, scratch);
  switch (cache.type) {
    LOCKSTEP_CASE(kFloat32)
    LOCKSTEP_CASE(kFloat16)
    LOCKSTEP_CASE(kBFloat16)
    LOCKSTEP_CASE(kFloat8)
    LOCKSTEP_CASE(kInt8)
  }
#undef LOCKSTEP_CASE
}

template <CacheType kType>
LOCKSTEP_INLINE void append_eight_bits(const CacheView& cache, std::byte* at, std::size_t offset, const float* key, const float* value) {
  std::byte* values = at + cache.value_offset;
  place_elements<kType>(key, cache.head_dim, at + offset / 16 * 16 * cache.head_dim + offset % 16, 16,
                        reinterpret_cast<float*>(at + cache.scale_offset) + offset);
  place_elements<kType>(value, cache.head_dim, values + offset * cache.head_dim, 1,
                        reinterpret_cast<float*>(values + cache.scale_offset) + offset);
}

template <class Element>
LOCKSTEP_INLINE void place_key_and_value(std::byte* head, std::size_t value_offset, std::size_t head_dim, std::size_t offset,
                                         const Element* key, const Element* value) {
  Element* keys = reinterpret_cast<Element*>(head) + offset / 16 * 16 * head_dim + offset % 16;
  for (std::size_t d = 0; d < head_dim; ++d) keys[d * 16] = key[d];
  __builtin_memcpy(head + value_offset + offset * head_dim * sizeof(Element), value, head_dim * sizeof(Element));
}

void append(const CacheView& cache, std::uint32_t block, std::size_t head, std::size_t offset, const float* key, const float* value) {
  std::byte* at = cache.cache + block * cache.block_bytes + head * cache.head_bytes;
  if (cache.type == CacheType::kInt8) return append_eight_bits<CacheType::kInt8>(cache, at, offset, key, value);
  if (cache.type == CacheType::kFloat8) return append_eight_bits<CacheType::kFloat8>(cache, at, offset, key, value);
  if (cache.type == CacheType::kFloat32) return place_key_and_value(at, cache.value_offset, cache.head_dim, offset, key, value);
  constexpr std::size_t kPiece = 256;
  std::uint16_t halves[2][kPiece];
  std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(at) + offset / 16 * 16 * cache.head_dim + offset % 16;
  std::uint16_t* values = reinterpret_cast<std::uint16_t*>(at + cache.value_offset) + offset * cache.head_dim;
  for (std::size_t d = 0; d < cache.head_dim; d += kPiece) {
    const std::size_t n = cache.head_dim - d < kPiece ? cache.head_dim - d : kPiece;
    if (cache.type == CacheType::kFloat16) {
      to_half(key + d, n, halves[0]);
      to_half(value + d, n, halves[1]);
    } else {
      to_bfloat16(key + d, n, halves[0]);
      to_bfloat16(value + d, n, halves[1]);
    }
    for (std::size_t i = 0; i < n; ++i) keys[(d + i) * 16] = halves[0][i];
    __builtin_memcpy(values + d, halves[1], 2 * n);
  }
}
