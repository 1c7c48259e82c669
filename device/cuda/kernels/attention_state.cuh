#pragma once

#include "device/cuda/kernels/kv_cache.cuh"

/// What the two families of attention share: which queries a block works on, which keys they see, and how the results of parts of the keys
/// are merged. Queries of one sequence that read the same KV head go together: row r of them is token r / heads, head r % heads, where
/// `heads` is how many query heads share the KV head.
namespace lockstep::device::cuda {

constexpr unsigned kSpan = 64;      // keys, at absolute positions
constexpr unsigned kTileRows = 16;  // rows that a block, or in prefill a warp, works on
constexpr unsigned kAttentionThreads = 128;

struct AttentionArguments {
  const float* qkv;
  std::size_t qkv_stride;
  StepView step;
  HeadMap heads;
  CacheView cache;
  float scale;  // of the scores; in the 16-bit family times log2(e)
  ScoreBend bend;
  const float* sinks;  // [num_heads]; null: none
  float sink_factor;   // of all sinks: to the base that the scores are in
  std::uint32_t window;
  void* out;
  std::size_t out_stride;
  std::uint32_t parts;       // blocks that share the keys of one tile
  std::uint32_t max_units;   // records of a tile in `partials`
  std::uint32_t rows_limit;  // rows of a record
  unsigned* counters;        // of each tile; zero, and left so
  float* partials;           // [tiles, max_units] records
};

/// A scaled score with its cap and slope; both in the base that the scores are in.
__device__ inline float bend_score(const ScoreBend& bend, unsigned head, unsigned key, float score) {
  if (bend.soft_cap != 0.0f) score = bend.soft_cap * tanh_of(score / bend.soft_cap);
  if (bend.slopes != nullptr) score = fmaf(bend.slopes[head] * bend.slope_factor, static_cast<float>(key), score);
  return score;
}

struct KeyRange {
  unsigned begin = 0;
  unsigned end = 0;  // not above begin: sees none
};

/// The rows that go together in a block.
struct Tile {
  SequenceView sequence;
  const std::uint32_t* block_table;
  unsigned kv_head;
  unsigned first_head;  // of those that share the KV head
  unsigned num_heads;
  unsigned first_row;
  unsigned num_rows;  // 0: nothing to do
  std::uint32_t window;
  KeyRange keys;  // that any row sees

  __device__ unsigned token_of(unsigned row) const { return (first_row + row) / num_heads; }
  __device__ unsigned head_of(unsigned row) const { return first_head + (first_row + row) % num_heads; }
  __device__ KeyRange keys_of(unsigned row) const {
    if (row >= num_rows) return {0, 0};
    const unsigned end = sequence.first_position + token_of(row) + 1;
    return {window != 0 && end > window ? end - window : 0, end};
  }
};

/// The query heads that read a KV head: [first, first + count).
struct HeadRun {
  unsigned first;
  unsigned count;
};
__host__ __device__ inline HeadRun heads_of_kv_head(const HeadMap& heads, unsigned kv_head) {
  const unsigned begin = kv_head * heads.group, end = begin + heads.group;
  const unsigned first = begin > heads.offset ? begin - heads.offset : 0;
  const unsigned behind = end > heads.offset ? end - heads.offset : 0;
  const unsigned last = behind < heads.num_heads ? behind : heads.num_heads;
  return {first, last > first ? last - first : 0};
}

__device__ inline Tile find_tile(const AttentionArguments& arguments, unsigned sequence, unsigned kv_head, unsigned first_row,
                                 unsigned max_rows) {
  Tile tile;
  tile.sequence = arguments.step.sequences[sequence];
  tile.block_table = arguments.step.block_tables + static_cast<std::size_t>(sequence) * arguments.step.block_table_stride;
  tile.kv_head = kv_head;
  const HeadRun run = heads_of_kv_head(arguments.heads, kv_head);
  tile.first_head = run.first;
  tile.num_heads = run.count;
  tile.first_row = first_row;
  tile.window = arguments.window;
  const unsigned rows = tile.sequence.num_tokens * tile.num_heads;
  tile.num_rows = rows > first_row ? min(rows - first_row, max_rows) : 0;
  tile.keys = {0, 0};
  if (tile.num_rows != 0) tile.keys = {tile.keys_of(0).begin, tile.keys_of(tile.num_rows - 1).end};
  return tile;
}

/// How a state takes in the state of later keys. A state is m, the maximum of the scores; l, the sum of p = e^(score - m); and o, the sums
/// of p * value. l is 0 where no key is visible, else at least about 1, or NaN.
struct Blend {
  float old_factor;  // negative: there was no state, the new one is taken
  float new_factor;  // negative: the new state is of no keys, the old one stays

  __device__ float of(float old_value, float new_value) const {
    if (new_factor < 0.0f) return old_value;
    if (old_factor < 0.0f) return new_value;
    return fmaf(new_value, new_factor, old_value * old_factor);
  }
};

/// Merges m and l by docs/numerics.md N5, and gives what is to be done to each element of o.
template <class Exp>
__device__ inline Blend merge_row(float& m, float& l, float new_m, float new_l) {
  if (new_l == 0.0f) return {1.0f, -1.0f};
  if (l == 0.0f) {
    m = new_m;
    l = new_l;
    return {-1.0f, 1.0f};
  }
  const float larger = m > new_m ? m : new_m;
  const Blend blend{Exp::of(m - larger), Exp::of(new_m - larger)};
  l = fmaf(new_l, blend.new_factor, l * blend.old_factor);
  m = larger;
  return blend;
}

struct NaturalExp {
  __device__ static float of(float x) { return exp_of(x); }
};
struct BinaryExp {
  __device__ static float of(float x) { return exp2_of(x); }
};

/// The states of a tile's rows in memory: m [kTileRows], l [kTileRows], o [rows, stride].
struct States {
  float* at;
  unsigned stride;  // floats from row to row of o: head_dim rounded up to 4

  __device__ float& m(unsigned row) const { return at[row]; }
  __device__ float& l(unsigned row) const { return at[kTileRows + row]; }
  __device__ float& o(unsigned row, unsigned dim) const { return at[2 * kTileRows + row * stride + dim]; }
};
__host__ __device__ inline std::size_t state_floats(unsigned rows, unsigned stride) {
  return 2 * kTileRows + static_cast<std::size_t>(rows) * stride;
}
__host__ __device__ inline unsigned state_stride(unsigned head_dim) { return (head_dim + 3) / 4 * 4; }

constexpr unsigned kMostMerged = 16;  // states in one call of merge_states
using Blends = Blend[kMostMerged][kTileRows];

/// The block merges `count` states into `into`, ascending; `state(i)` gives the i-th. Begins and ends with a barrier.
template <class Exp, class State>
__device__ inline void merge_states(const States& into, unsigned rows, unsigned count, const State& state, Blends& blends) {
  __syncthreads();
  if (threadIdx.x < rows) {
    const unsigned row = threadIdx.x;
#pragma unroll 4  // the loads of several states are under way at once
    for (unsigned i = 0; i < count; ++i) {
      const States next = state(i);
      blends[i][row] = merge_row<Exp>(into.m(row), into.l(row), next.m(row), next.l(row));
    }
  }
  __syncthreads();
  for (unsigned i = 4 * threadIdx.x; i < rows * into.stride; i += 4 * kAttentionThreads) {
    const unsigned row = i / into.stride, dim = i % into.stride;
    float4 sum = *reinterpret_cast<const float4*>(&into.o(row, dim));
#pragma unroll 8
    for (unsigned n = 0; n < count; ++n) {
      const Blend blend = blends[n][row];
      const float4 next = *reinterpret_cast<const float4*>(&state(n).o(row, dim));
      sum = make_float4(blend.of(sum.x, next.x), blend.of(sum.y, next.y), blend.of(sum.z, next.z), blend.of(sum.w, next.w));
    }
    *reinterpret_cast<float4*>(&into.o(row, dim)) = sum;
  }
  __syncthreads();
}

/// States without keys. The caller has a barrier before they are read.
__device__ inline void clear_states(const States& states, unsigned rows) {
  for (unsigned i = threadIdx.x; i < state_floats(rows, states.stride); i += kAttentionThreads) states.at[i] = 0.0f;
}

/// What the sink of a head makes of a row that has seen all its keys: the result is o * factor / sum.
struct Ending {
  float factor;
  float sum;
};
template <class Exp>
__device__ inline Ending end_row(const AttentionArguments& arguments, unsigned head, float m, float l) {
  if (arguments.sinks == nullptr) return {1.0f, l};
  const float sink = arguments.sinks[head] * arguments.sink_factor;
  const float larger = m > sink ? m : sink;
  const float factor = Exp::of(m - larger);
  return {factor, fmaf(l, factor, Exp::of(sink - larger))};
}

/// The result of each row, to the output.
template <class Exp, class Out>
__device__ inline void write_output(const AttentionArguments& arguments, const Tile& tile, const States& states) {
  const unsigned head_dim = arguments.heads.head_dim;
  for (unsigned i = threadIdx.x; i < tile.num_rows * head_dim; i += kAttentionThreads) {
    const unsigned row = i / head_dim, dim = i % head_dim;
    Out* out = static_cast<Out*>(arguments.out) + (tile.sequence.first_token + tile.token_of(row)) * arguments.out_stride;
    const Ending ending = end_row<Exp>(arguments, tile.head_of(row), states.m(row), states.l(row));
    out[tile.head_of(row) * head_dim + dim] = from_float<Out>(states.o(row, dim) * ending.factor / ending.sum);
  }
}

/// The share of one block of `arguments.parts` in a run of units of keys (spans, or groups of spans).
struct Share {
  unsigned first;
  unsigned end;     // not above first: none
  unsigned active;  // blocks that have a share
};
__device__ inline Share share_of(unsigned first_unit, unsigned end_unit, unsigned part, unsigned parts) {
  const unsigned units = end_unit - first_unit;
  if (units == 0) return {0, 0, 0};
  const unsigned each = (units + parts - 1) / parts;
  return {first_unit + part * each, min(first_unit + (part + 1) * each, end_unit), (units + each - 1) / each};
}

/// Whether this block is the last of `active` that come here; it sees what the others wrote before. Leaves the counter at zero.
__device__ inline bool is_last_block(unsigned* counter, unsigned active) {
  LOCKSTEP_SHARED(bool, last);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomic_add_acq_rel(counter, 1) == active - 1;
    if (last) atomicExch(counter, 0u);
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

/// Walks over a block's share of the units and brings them together. `compute(unit)` leaves the states of a unit in `unit_states`, after a
/// barrier. With one block they are merged one after another; with several each leaves its own in global memory, and the last block to
/// finish merges them all, ascending: the same bits. Bytes of the latter: 8 (head_dim + 2) a row and unit.
template <class Exp, class Out, class Compute>
__device__ inline void walk_units(const AttentionArguments& arguments, const Tile& tile, unsigned tile_index, const Share& share,
                                  unsigned first_unit, unsigned end_unit, const States& unit_states, const States& total, Blends& blends,
                                  const Compute& compute) {
  const std::size_t record = state_floats(arguments.rows_limit, total.stride);
  float* records = arguments.partials + static_cast<std::size_t>(tile_index) * arguments.max_units * record;
  const unsigned rows = tile.num_rows;
  clear_states(total, rows);
  for (unsigned unit = share.first; unit < share.end; ++unit) {
    compute(unit);
    if (share.active == 1) {
      merge_states<Exp>(
          total, rows, 1, [&](unsigned) { return unit_states; }, blends);
      continue;
    }
    float* to = records + (unit - first_unit) * record;
    for (unsigned i = 4 * threadIdx.x; i < state_floats(rows, total.stride); i += 4 * kAttentionThreads) {
      *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(unit_states.at + i);
    }
    __syncthreads();
  }
  if (share.active > 1) {
    if (!is_last_block(arguments.counters + tile_index, share.active)) return;
    for (unsigned unit = first_unit; unit < end_unit; unit += kMostMerged) {
      const auto state = [&](unsigned i) { return States{records + (unit - first_unit + i) * record, total.stride}; };
      merge_states<Exp>(total, rows, min(end_unit - unit, kMostMerged), state, blends);
    }
  }
  write_output<Exp, Out>(arguments, tile, total);
}

}  // namespace lockstep::device::cuda
