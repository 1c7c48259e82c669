#pragma once

#include "device/cuda/kernels/rows.cuh"
#include "device/cuda/views.h"

/// Mixtures of experts beside their products. The bits are those of the CPU device.
namespace lockstep::device::cuda {

constexpr unsigned kRouteThreads = 32;
constexpr unsigned kGroupThreads = 1024;
constexpr unsigned kMostExperts = 1024;
constexpr unsigned kMostLeaves = 64;  // of the inner columns on one rank
constexpr unsigned kSumThreads = 256;
constexpr unsigned kSumColumns = 64;  // of a block: all leaves of a token at once

/// How leaf sums become roots: the additions in order, then which sums are the roots.
struct LeafMerges {
  unsigned num_merges = 0;
  unsigned num_roots = 0;
  unsigned char into[kMostLeaves] = {};
  unsigned char from[kMostLeaves] = {};
  unsigned char roots[kMostLeaves] = {};
};

/// A thread a row: weights of the chosen experts, 0 for the others; all NaN where a logit is not finite. There are few experts, and a token
/// reads them from L1. Bytes: 8 n a row. Operations: about (top + 50) n.
template <class Float>
__global__ void __launch_bounds__(kRouteThreads) route_rows(ConstRows<Float> logits, unsigned num_rows, unsigned num_experts,
                                                            unsigned per_token, bool renormalised, MutableRows<Float> out) {
  const unsigned t = blockIdx.x * kRouteThreads + threadIdx.x;
  if (t >= num_rows) return;
  const float* row = logits.row(t);
  float* weights = out.row(t);
  float largest = -INFINITY;
  bool finite = true;
  for (unsigned e = 0; e < num_experts; ++e) {
    finite = finite && (__float_as_uint(row[e]) & 0x7F800000u) != 0x7F800000u;
    largest = row[e] > largest ? row[e] : largest;
    weights[e] = 0.0f;
  }
  if (!finite) {
    for (unsigned e = 0; e < num_experts; ++e) weights[e] = __uint_as_float(0x7FC00000u);
    return;
  }
  for (unsigned chosen = 0; chosen < per_token; ++chosen) {
    unsigned best = num_experts;
    for (unsigned e = 0; e < num_experts; ++e) {
      if (weights[e] == 0.0f && (best == num_experts || row[e] > row[best])) best = e;
    }
    if (best < num_experts) weights[best] = 1.0f;
  }
  float sum = 0.0f;
  for (unsigned e = 0; e < num_experts; ++e) {
    if (!renormalised || weights[e] != 0.0f) sum = sum + exp_of(row[e] - largest);
  }
  for (unsigned e = 0; e < num_experts; ++e) {
    if (weights[e] != 0.0f) weights[e] = exp_of(row[e] - largest) / sum;
  }
}

/// What a token takes from an expert that it chose: its weight, and the row of the expert's products.
struct ExpertChoice {
  float weight = 0.0f;
  std::uint32_t expert = 0;
  std::uint32_t row = 0;  // kNoRow: no choice, and none behind it
};

/// The tiles of a grouped product, to be filled: as many rows at most in each.
struct TileList {
  Grouping::Tile* tiles = nullptr;
  std::uint32_t num_tiles = 0;
  std::uint32_t tile_rows = 0;
};

struct GroupArguments {
  ConstRows<float> weights{};               // [num_tokens, num_experts] of route_rows
  const std::int32_t* token_ids = nullptr;  // negative: a pad, which chooses none; null: there are no pads
  ExpertChoice* choices = nullptr;          // [num_tokens, per_token], experts ascending
  std::uint32_t* row_tokens = nullptr;      // [num_tokens * per_token]: whose row it is
  TileList first{}, second{};
  std::uint32_t num_tokens = 0;
  std::uint32_t num_experts = 0;
  std::uint32_t per_token = 0;
  std::uint32_t unused = 0;  // no padding: no word happens to look like an address
};

/// The sums of all counts before each, by one warp; returns the sum of all.
template <class Count>
__device__ inline unsigned sums_before(unsigned size, unsigned lane, unsigned* sums, const Count& count) {
  unsigned all = 0;
  for (unsigned first = 0; first < size; first += 32) {
    const unsigned own = first + lane < size ? count(first + lane) : 0;
    unsigned sum = own;
    for (unsigned apart = 1; apart < 32; apart *= 2) {
      const unsigned below = __shfl_up_sync(0xFFFFFFFFu, sum, apart);
      if (lane >= apart) sum += below;
    }
    if (first + lane < size) sums[first + lane] = all + sum - own;
    all += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  return all;
}

/// The choices of one token, by one warp: 128 experts at a time, so that their loads are under way together.
__device__ inline void choose_experts(const GroupArguments& args, unsigned token, unsigned lane, unsigned* counts) {
  const float* weights = args.weights.row(token);
  ExpertChoice* choices = args.choices + static_cast<std::size_t>(token) * args.per_token;
  unsigned num_choices = 0;
  const unsigned num_experts = args.token_ids != nullptr && args.token_ids[token] < 0 ? 0 : args.num_experts;
  for (unsigned first = 0; first < num_experts; first += 128) {
    float loaded[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) loaded[i] = first + 32 * i + lane < num_experts ? weights[first + 32 * i + lane] : 0.0f;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned chosen = __ballot_sync(0xFFFFFFFFu, loaded[i] != 0.0f);
      const unsigned place = num_choices + static_cast<unsigned>(__popc(chosen & ((1u << lane) - 1)));
      if (loaded[i] != 0.0f && place < args.per_token) {
        choices[place] = {loaded[i], first + 32 * i + lane, 0};
        atomicAdd(counts + first + 32 * i + lane, 1u);
      }
      num_choices += static_cast<unsigned>(__popc(chosen));
    }
  }
  for (unsigned place = num_choices + lane; place < args.per_token; place += 32) choices[place] = {0.0f, 0, kNoRow};
}

/// The tiles of the rows of each expert, then empty ones.
__device__ inline void fill_tiles(const TileList& list, unsigned num_experts, const unsigned* first_rows, const unsigned* counts,
                                  const unsigned* first_tiles, unsigned num_filled) {
  for (unsigned e = threadIdx.x; e < num_experts; e += kGroupThreads) {
    const unsigned end = first_rows[e] + counts[e];
    Grouping::Tile* tile = list.tiles + first_tiles[e];
    for (unsigned row = first_rows[e]; row < end; row += list.tile_rows) {
      *tile++ = {e, row, end - row < list.tile_rows ? end : row + list.tile_rows};
    }
  }
  for (unsigned i = num_filled + threadIdx.x; i < list.num_tiles; i += kGroupThreads) list.tiles[i] = {0, 0, 0};
}

/// One block. Groups the choices of all tokens by expert: the rows of an expert follow each other, experts ascending. In which order they
/// do is left to chance: no bit of a product depends on its neighbours. A token has per_token choices at most; where all its weights are
/// NaN, the first experts are enough to make it NaN. Bytes: 4 num_experts + 28 per_token a token, and 24 a tile. Operations: few.
template <class Float>
__global__ void __launch_bounds__(kGroupThreads) group_rows(const __grid_constant__ GroupArguments args) {
  LOCKSTEP_SHARED(unsigned[kMostExperts], counts);
  LOCKSTEP_SHARED(unsigned[kMostExperts], first_rows);
  LOCKSTEP_SHARED(unsigned[kMostExperts], next_rows);
  LOCKSTEP_SHARED(unsigned[kMostExperts], first_tiles);
  LOCKSTEP_SHARED(unsigned[kMostExperts], second_tiles);
  LOCKSTEP_SHARED(unsigned[2], filled);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned e = threadIdx.x; e < args.num_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();  // the counts are zero
  for (unsigned token = warp; token < args.num_tokens; token += kGroupThreads / 32) choose_experts(args, token, lane, counts);
  __syncthreads();  // all choices are counted
  const auto tiles_of = [&](const TileList& list, unsigned* before) {
    return sums_before(args.num_experts, lane, before, [&](unsigned e) { return (counts[e] + list.tile_rows - 1) / list.tile_rows; });
  };
  if (warp == 0) {
    sums_before(args.num_experts, lane, first_rows, [&](unsigned e) { return counts[e]; });
    for (unsigned e = lane; e < args.num_experts; e += 32) next_rows[e] = first_rows[e];  // of this lane
  } else if (warp == 1) {
    const unsigned all = tiles_of(args.first, first_tiles);
    if (lane == 0) filled[0] = all;
  } else if (warp == 2) {
    const unsigned all = tiles_of(args.second, second_tiles);
    if (lane == 0) filled[1] = all;
  }
  __syncthreads();  // rows and tiles have their places
  fill_tiles(args.first, args.num_experts, first_rows, counts, first_tiles, filled[0]);
  fill_tiles(args.second, args.num_experts, first_rows, counts, second_tiles, filled[1]);
  for (unsigned i = threadIdx.x; i < args.num_tokens * args.per_token; i += kGroupThreads) {
    if (args.choices[i].row == kNoRow) continue;
    const unsigned row = atomicAdd(next_rows + args.choices[i].expert, 1u);
    args.choices[i].row = row;
    args.row_tokens[row] = i / args.per_token;
  }
}

struct ExpertSumArguments {
  ConstRows<float> partial{};             // [leaves, num_rows] products of the down projections
  const ExpertChoice* choices = nullptr;  // of group_rows
  const float* const* biases = nullptr;   // of each expert, added to the products of the first leaf; null: none
  MutableRows<float> out{};               // [roots, root_stride]
  std::uint64_t root_stride = 0;
  std::uint32_t num_rows = 0;
  std::uint32_t num_leaves = 0;
  std::uint32_t per_token = 0;
  std::uint32_t columns = 0;
  std::uint64_t aligned = 0;  // 0 or 1
};

/// Grid (tokens, pieces of kSumColumns columns). For each leaf sum = fma(weight, product, sum) over the experts of the token, ascending;
/// the leaves of a token are added up to their roots in shared memory. Bytes: 4 n per_token leaves + 4 n a root for each token. Operations:
/// 2 n per_token leaves.
template <class Float>
__global__ void __launch_bounds__(kSumThreads)
    sum_expert_rows(const __grid_constant__ ExpertSumArguments args, const __grid_constant__ LeafMerges merges) {
  LOCKSTEP_SHARED(float[kMostLeaves * kSumColumns], sums);
  constexpr unsigned kQuads = kSumColumns / 4;
  const unsigned within = threadIdx.x % kQuads * 4, at = blockIdx.y * kSumColumns + within;
  const ExpertChoice* choices = args.choices + static_cast<std::size_t>(blockIdx.x) * args.per_token;
  for (unsigned leaf = threadIdx.x / kQuads; leaf < args.num_leaves; leaf += kSumThreads / kQuads) {
    float sum[4] = {};
    for (unsigned i = 0; at < args.columns && i < args.per_token; ++i) {
      const ExpertChoice choice = choices[i];
      if (choice.row == kNoRow) break;
      float v[4];
      load_four(args.partial.row(static_cast<std::size_t>(leaf) * args.num_rows + choice.row), at, args.columns, args.aligned, v);
      const float* bias = leaf == 0 ? args.biases[choice.expert] : nullptr;
      if (bias != nullptr) {
        float b[4];
        load_four(bias, at, args.columns, args.aligned, b);
        for (unsigned j = 0; j < 4; ++j) v[j] = v[j] + b[j];
      }
      for (unsigned j = 0; j < 4; ++j) sum[j] = fmaf(choice.weight, v[j], sum[j]);
    }
    store_aligned(sums + leaf * kSumColumns + within, sum);
  }
  __syncthreads();  // the sums of all leaves are there
  const unsigned column = blockIdx.y * kSumColumns + threadIdx.x;
  if (threadIdx.x >= kSumColumns || column >= args.columns) return;
  for (unsigned m = 0; m < merges.num_merges; ++m) {
    float& into = sums[merges.into[m] * kSumColumns + threadIdx.x];
    into = into + sums[merges.from[m] * kSumColumns + threadIdx.x];
  }
  for (unsigned root = 0; root < merges.num_roots; ++root) {
    args.out.row(root * args.root_stride + blockIdx.x)[column] = sums[merges.roots[root] * kSumColumns + threadIdx.x];
  }
}

}  // namespace lockstep::device::cuda
