#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/isa.h"
#include "device/cpu/panel_layout.h"
#include "device/device.h"

/// The kernels of one instruction set, as plain functions over pointers. They know nothing of threads and allocate nothing.
/// This header is compiled into files of every instruction set: it must define no function (the linker keeps one copy of an inline
/// function, and it might keep the one that only new processors can run).
namespace lockstep::device::cpu {

inline constexpr std::size_t kLanes = 16;        // virtual lanes of the numeric contract, and rows of a panel
inline constexpr std::size_t kWidePanel = 4;     // panels that are interleaved, k by k, for the float types
inline constexpr std::size_t kBlock = 32;        // columns of a quantisation block
inline constexpr std::size_t kSpan = 64;         // keys of an attention span
inline constexpr std::size_t kTokenBlock = 128;  // tokens that a product keeps in the cache beside a panel
inline constexpr std::size_t kMaxOpenSums = 16;  // partial sums of one row-parallel output that may be open at a time
inline constexpr std::size_t kQueryBlock = 32;   // queries that walk over the spans together
inline constexpr std::size_t kProbeOperations = 16 * 6;

/// A matrix of int8 blocks. Row t: quants[t * stride ...], and per block b one entry at [t * blocks + b] of the others.
struct Int8View {
  std::int8_t* quants;
  float* scales;
  float* scaled_sums;  // scale * sum of the quants of the block
  std::int32_t* sums;  // two a block, of 16 columns each: at [2 * (t * blocks + b)]
  std::size_t stride;
  std::size_t blocks;
};

/// One row of such a matrix.
struct Int8Row {
  std::int8_t* quants;
  float* scales;
  float* scaled_sums;
  std::int32_t* sums;
};

/// Where a row goes: floats, or blocks where that is null.
struct RowOut {
  float* floats;
  Int8Row blocks;
};

struct LinearArgs {
  DType dtype;
  std::size_t rows;  // of W, without the pad
  std::size_t columns;
  std::size_t first_block;  // blocks of the first super-block that the shard lacks
  std::size_t panel_bytes;  // of the block types
  const Leaf* leaves;
  std::size_t num_leaves;
  const float* floats;  // [num_tokens, columns], or null, and then
  Int8View int8;        // which goes with the block types
  std::size_t num_tokens;
  const float* bias;  // [rows] or null
  float* out;         // [roots, num_tokens, out_stride]: the first `rows` of each are written
  std::size_t out_stride;
};

/// How an element of the KV cache is stored. The types of 8 bits have a scale for each key and each value (docs/numerics.md, N7).
enum class CacheType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8, kInt8 };

/// Keys and values of one layer. Block b, head h starts at cache + b * block_bytes + h * head_bytes:
/// keys [block_size / 16][head_dim][16 keys], then, value_offset bytes on, values [block_size][head_dim]. Behind the keys, and behind the
/// values, scale_offset bytes from their beginning, stand their scales, fp32 [block_size], where the type has them.
struct CacheView {
  std::byte* cache;
  std::size_t block_bytes;
  std::size_t head_bytes;
  std::size_t value_offset;
  std::size_t scale_offset;
  std::size_t block_size;
  std::size_t head_dim;
  CacheType type;
};

/// The keys and values of one sequence and KV head in the cache.
struct KeysPlace {
  const std::uint32_t* block_table = nullptr;
  std::size_t kv_head = 0;
  std::uint32_t last_position = 0;
};

/// Up to kQueryBlock queries over the same keys.
struct QueryBlock {
  const float* queries[kQueryBlock];
  std::uint32_t positions[kQueryBlock];
  std::size_t count;
  KeysPlace keys;
  KeysPlace next_keys;  // what the thread attends to behind these, from span next_span on, to be asked for ahead; no table: nothing
  std::size_t next_span = 0;
  float scale;
  std::uint32_t window;
  float soft_cap;  // 0: none
  bool sloped;
  float slopes[kQueryBlock];  // of the query's head, where sloped
};

/// What one query has seen of its keys: value sums [head_dim, rounded up to 16], then maximum, sum of exponentials, and 1.0 if there was
/// any key, else 0.
constexpr std::size_t kStateExtra = 16;

struct Kernels {
  Isa isa;
  bool q8_offset;  // Q8_0 weights are stored with 128 added (the top bit flipped)

  /// Panels [first, end) of the product; the panels of one call were packed together (packing.h) and begin at `weights`. `scratch` holds
  /// linear_scratch_bytes.
  void (*linear)(const LinearArgs& args, const std::byte* weights, std::size_t first, std::size_t end, std::byte* scratch);
  std::size_t (*linear_scratch_bytes)(const LinearArgs& args);
  /// Row `row` of a panel of a block type as fp32, the bits of dequantise().
  void (*expand_row)(DType dtype, const std::byte* panel, std::size_t columns, std::size_t row, float* out);

  /// x += delta + bias, if `delta` is not null (`bias` may be); then out = norm of x, which may be x.
  void (*norm)(float* x, const float* delta, const float* bias, std::size_t columns, const Norm& norm, const RowOut& out);
  void (*quantise)(const float* x, std::size_t blocks, const Int8Row& out);
  /// out = gate and up, made one; a null `up` is ones, and is not limited.
  void (*activate)(const Gating& gating, const float* gate, const float* up, std::size_t columns, float* out);
  void (*add)(float* x, const float* delta, const float* bias, std::size_t columns);
  float (*square_sum)(const float* x, std::size_t columns);
  /// x = x / sqrt(mean_square + eps) * weight.
  void (*norm_by_square)(float* x, std::size_t columns, float mean_square, const float* weight, float eps);
  void (*scale)(float* x, std::size_t columns, float factor);
  /// sum = fma(factor, x + bias, sum); `bias` may be null.
  void (*add_scaled)(float* sum, const float* x, const float* bias, std::size_t columns, float factor);
  void (*soft_cap)(float* x, std::size_t columns, float cap);
  void (*exponentials)(const float* x, std::size_t count, float* out);  // exp of each
  Top (*top)(const float* logits, std::size_t count);

  /// out = the first 2 * half dims rotated, the others as they are; out may be x.
  void (*rotate)(const float* x, std::size_t head_dim, const float* cosines, const float* sines, std::size_t half, float* out);
  /// Puts one key and one value of a head in place, rounded to the type of the cache.
  void (*append)(const CacheView& cache, std::uint32_t block, std::size_t head, std::size_t offset, const float* key, const float* value);
  void (*to_half)(const float* x, std::size_t count, std::uint16_t* out);
  void (*to_bfloat16)(const float* x, std::size_t count, std::uint16_t* out);
  void (*from_half)(const std::uint16_t* x, std::size_t count, float* out);

  /// Spans [first, end) for every query of the block. states: one a query, `state_stride` floats apart. With span_stride 0 the spans are
  /// merged into them, else span s is left by itself at states + (s - first) * span_stride. `scratch`: attend_scratch_floats.
  void (*attend)(const CacheView& cache, const QueryBlock& block, std::size_t first, std::size_t end, float* states,
                 std::size_t state_stride, std::size_t span_stride, float* scratch);
  std::size_t (*attend_scratch_floats)(std::size_t head_dim);
  void (*merge_state)(float* into, const float* from, std::size_t head_dim);
  /// The values over the sum of exponentials, into which `sink` goes first, where it is not null.
  void (*finish_state)(const float* state, std::size_t head_dim, const float* sink, float* out);

  // For the probes of what this machine can do.
  std::uint64_t (*read_bytes)(const std::byte* from, std::size_t count);  // touches every byte
  float (*multiply_floats)(std::size_t rounds);                           // kProbeOperations multiply-adds of floats a round
  std::int32_t (*multiply_bytes)(std::size_t rounds);                     // 4 * kProbeOperations of nibbles with int8, as products do them
};

/// @pre the machine supports it.
const Kernels& kernels_for(Isa isa);

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512vnni_kernels();
const Kernels& neon_kernels();

}  // namespace lockstep::device::cpu
