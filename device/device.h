#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "device/selection.h"

namespace lockstep::device {

/// How a matrix of activations is represented. The choice is part of the model of computation (docs/numerics.md, N7), so it stands in the
/// rank graph.
enum class Activation : std::uint8_t {
  kFloat32,
  kInt8Blocks,  // blocks of 32 columns: int8 values and one fp32 scale, as a product with block-quantised weights reads them
  kFloat16,
  kBFloat16,
};

/// "float32", "int8", "float16", "bfloat16".
std::string_view name_of(Activation type);

/// Memory of a device, freed with the object. Contents are undefined until written.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t size_bytes() const = 0;
};

/// A matrix in device memory. Which bytes stand where is the device's business; only its kernels read `data`.
struct Matrix {
  void* data = nullptr;
  std::size_t columns = 0;
  std::size_t capacity_rows = 0;  // rows that `data` has room for: the strides of a layout may depend on it
  Activation type = Activation::kFloat32;
};

/// One leaf of a row-parallel product (docs/numerics.md, N1 and N2), in the order in which leaves are computed.
struct Leaf {
  std::uint32_t end = 0;     // first column behind the leaf; it begins where the previous one ends
  std::uint32_t merges = 0;  // additions of the two topmost partial sums, after this leaf's own sum was pushed: below + above
  bool ends_root = false;    // the one partial sum that is left then is complete: it is the next root
  friend bool operator==(const Leaf&, const Leaf&) = default;
};

/// What a device needs to know to take in a weight matrix: y = x W^T with W [rows, columns].
struct WeightSpec {
  std::string name;  // for messages
  DType dtype = DType::kF32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<Leaf> leaves;            // a column-parallel product has one: {columns, 0, true}
  std::size_t first_column = 0;        // of `columns` within its super-block, where the type has them: a shard may begin inside of one
  std::vector<std::size_t> part_rows;  // its rows are parts (queries, keys, values; gate, up) of which what stands at the same share of
                                       // each is used together; empty: one part
  std::size_t num_roots() const;
  /// @param most_open_sums  partial sums that the device can keep between two leaves
  /// @throws std::invalid_argument, naming the weight, if there is no column, or the leaves do not cover the columns, cut a block, or leave
  /// too many sums or a root of several.
  void check(std::size_t most_open_sums) const;
  /// The whole blocks that hold the columns: covering_bytes(dtype, first_column, columns).
  std::size_t stored_row_bytes() const;
};

/// A weight matrix in the layout of a device.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual const WeightSpec& spec() const = 0;
  virtual std::size_t size_bytes() const = 0;
};

/// Fills `to` with rows [first, first + count) as stored (stored_row_bytes() each). Called from several threads at once.
using ReadRows = std::function<void(std::size_t first, std::size_t count, std::span<std::byte> to)>;

/// How a KV cache makes its numbers smaller: 8 bits each and one fp32 scale for each token, KV head and keys or values, from that token's
/// numbers alone (docs/numerics.md, N7). kFloat8 is e4m3.
enum class KvQuantisation : std::uint8_t { kNone, kFloat8, kInt8 };

/// "", "fp8", "int8".
std::string_view name_of(KvQuantisation quantised);

/// Where the keys and values of a layer stand.
struct KvPlace {
  std::uint32_t table = 0;  // whose block table it goes by, see StepBatch::num_tables
  std::uint32_t slot = 0;   // its place among the layers of a block
};

/// The paged cache of keys and values of one rank.
struct KvCacheSpec {
  std::size_t num_layers = 0;
  std::size_t num_blocks = 0;
  std::size_t block_size = 0;    // tokens of a block; a multiple of 16
  std::size_t num_kv_heads = 0;  // of this rank
  std::size_t head_dim = 0;
  DType dtype = DType::kF32;                         // kF32, kF16 or kBF16
  KvQuantisation quantised = KvQuantisation::kNone;  // else `dtype` is of no interest
  /// [num_layers]. Layers that do not see equally far go by block tables of their own, so that blocks can be given back that only some of
  /// them still need. Empty: one table, and a block has all layers.
  std::vector<KvPlace> places = {};

  KvPlace place_of(std::size_t layer) const { return places.empty() ? KvPlace{0, static_cast<std::uint32_t>(layer)} : places[layer]; }
  std::size_t num_tables() const;
  std::size_t num_slots() const;        // layers of a block
  std::size_t bytes_per_block() const;  // keys and values of its layers
  std::size_t bytes_per_token() const;  // of all layers: a block of each table holds block_size tokens
};

class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual const KvCacheSpec& spec() const = 0;
};

/// What the tokens of one step are, in host memory.
struct StepBatch {
  struct Sequence {
    std::uint32_t first_token = 0;     // row of its first token in this step
    std::uint32_t num_tokens = 0;      // rows of this step
    std::uint32_t first_position = 0;  // position of that first token: the tokens before it are in the cache
    std::uint32_t block_table = 0;     // index of its first entry in `block_tables`
    std::uint32_t prompt_length = 0;   // tokens of its prompt: rotary angles may depend on it
  };
  std::vector<std::int32_t> token_ids;  // [tokens]
  std::vector<std::int32_t> positions;  // [tokens]
  std::vector<Sequence> sequences;      // rows ascending, without gaps
  /// Entry i of a table: the block of positions [i * block_size, (i + 1) * block_size). The tables of a sequence follow each other, each
  /// with the blocks of its positions up to the last one of this step.
  std::vector<std::uint32_t> block_tables;
  std::uint32_t num_tables = 1;           // of each sequence
  std::vector<std::uint32_t> logit_rows;  // rows whose logits are wanted, ascending
  std::size_t num_tokens() const { return token_ids.size(); }
  /// The first entry of a table of a sequence.
  static std::size_t first_entry(const Sequence& sequence, std::size_t table, std::size_t block_size) {
    return sequence.block_table + table * ((sequence.first_position + sequence.num_tokens + block_size - 1) / block_size);
  }
};

/// The most that a step will ever hold.
struct StepLimits {
  std::size_t max_tokens = 0;
  std::size_t max_logit_rows = 0;
  std::size_t max_sequences = 0;
  std::size_t max_positions = 0;        // of a sequence
  std::size_t max_sequence_blocks = 0;  // KV blocks of that many positions, in one table
  std::size_t num_tables = 1;           // block tables of a sequence
};

/// How many rows the values of a step have. A device may compute a few rows more than the batch has, so that one recording of the step's
/// ops serves several batches; what stands in those is of no interest.
struct StepRows {
  std::size_t tokens = 0;
  std::size_t logits = 0;
};

/// How the heads of one rank share its keys and values.
struct AttentionSpec {
  std::size_t num_heads = 0;     // of this rank
  std::size_t num_kv_heads = 0;  // of this rank
  std::size_t head_dim = 0;
  std::vector<std::uint32_t> kv_head_of;  // [num_heads]: index of the local KV head that a local query head reads
  float scale = 0.0f;                     // factor of the scores q.k
  std::uint32_t window = 0;               // a query at position p sees keys in (p - window, p]; 0: all of [0, p]
  float soft_cap = 0.0f;                  // not 0: a score s becomes soft_cap * tanh(s / soft_cap)
  std::vector<float> slopes;              // [num_heads]: slope * position of the key is added to a score; empty: nothing is
};

/// How a row is normalised (docs/numerics.md, N3). Vectors are fp32 [columns] in device memory.
struct Norm {
  enum class Kind : std::uint8_t {
    kRms,    // x / sqrt(mean(x^2) + eps) * weight
    kLayer,  // (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
  };
  Kind kind = Kind::kRms;
  const float* weight = nullptr;  // null: ones
  const float* bias = nullptr;    // kLayer; null: zeros
  float eps = 0.0f;

  static Norm rms(const float* weight, float eps) { return {Kind::kRms, weight, nullptr, eps}; }
  static Norm layer(const float* weight, const float* bias, float eps) { return {Kind::kLayer, weight, bias, eps}; }
};

/// The function of a feed-forward block (docs/numerics.md, N4).
enum class Nonlinearity : std::uint8_t {
  kSilu,       // x / (1 + e^-x)
  kGelu,       // x * Phi(x), Phi the normal distribution: the one with erf
  kGeluTanh,   // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
  kRelu,       // max(x, 0)
  kGeluQuick,  // x / (1 + e^(-1.702 x))
};

/// "silu", "gelu", "gelu_tanh", "relu", "gelu_quick".
std::string_view name_of(Nonlinearity function);

/// How gate and up of a feed-forward block become one: function(min(gate, limit)) * (max(-limit, min(up, limit)) + up_offset).
struct Gating {
  Nonlinearity function = Nonlinearity::kSilu;
  float limit = std::numeric_limits<float>::infinity();  // that: none
  float up_offset = 0.0f;

  bool operator==(const Gating&) const = default;
};

/// cos and sin of every position: [num_positions, rotary_dim / 2] each, fp32.
struct RotaryTable {
  std::span<const float> cosines;
  std::span<const float> sines;
  std::size_t rotary_dim = 0;  // the first dims of a head that are rotated, in pairs (i, i + rotary_dim / 2)
  bool by_token = false;       // the rows are those of the step's tokens, not positions
};

/// How tokens choose their experts: the `per_token` largest of their logits, ties to the lower id.
struct Routing {
  std::size_t per_token = 0;
  bool renormalised = false;  // the softmax is over the chosen ones, else over all
};

/// One expert of a rank: its inner columns. `down` has a root for each leaf. Biases are fp32 in device memory; null: zeros.
struct Expert {
  const Weight* gate_up = nullptr;
  const Weight* down = nullptr;
  const float* gate_up_bias = nullptr;  // [rows of gate_up]
  const float* down_bias = nullptr;     // [rows of down]: added to the first leaf here, so only the rank with the first leaf of all has it
};

/// The top of a row of logits: the largest value, and the lowest id that has it.
struct Top {
  float logit = 0.0f;
  std::int32_t id = -1;  // relative to the first row of the head's shard; -1: there is no row
  bool finite = true;    // every logit of the row is finite
};

/// Rows that are still to be added up: each of `parts` is [T, n] fp32, dense, in host memory. The merges in order; the sum is in part 0
/// then.
struct SumOfParts {
  struct Merge {
    std::uint32_t into = 0;  // part `into` = part `into` + part `from`
    std::uint32_t from = 0;
    bool operator==(const Merge&) const = default;
  };
  std::span<const float* const> parts;
  std::span<const Merge> merges;
};

/// A device: memory, weights in its own layout, and the op table. Calls are ordered like those of a stream: what an op wrote is visible to
/// later ops and collectives at once, to the host after synchronize(). Every op gives the same bits for a row whatever the other rows are,
/// and whatever the number of threads or the instruction set. Not thread-safe: one rank, one device.
///
/// Shapes: T is the number of rows given; "fp32 [T, n]" is dense and row-major.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;  // "cpu avx512vnni, 2 threads"
  /// What of it can change a bit of an answer: "cpu" for every processor, "cuda sm_90" for a GPU architecture.
  virtual std::string numerics() const = 0;
  /// How activations must stand that are multiplied with weights of this type.
  virtual Activation activation_for(DType weight) const = 0;
  /// Whether linear() takes activations of this type for weights of that one; those of activation_for() it always takes.
  virtual bool multiplies(DType weight, Activation activation) const { return activation == activation_for(weight); }
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  /// Bytes of a matrix of at most `rows` rows.
  virtual std::size_t matrix_bytes(Activation type, std::size_t rows, std::size_t columns) const = 0;
  virtual std::unique_ptr<Weight> load_weight(WeightSpec spec, const ReadRows& read) = 0;
  virtual std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) = 0;
  /// Memory that experts() takes for itself at the first step, for steps of up to `max_tokens`; all layers share it. `gate_up` and `down`
  /// are those of an expert. 0 where free_bytes() is.
  virtual std::size_t experts_bytes(std::size_t max_tokens, std::size_t per_token, const WeightSpec& gate_up,
                                    const WeightSpec& down) const {
    static_cast<void>(max_tokens), static_cast<void>(per_token), static_cast<void>(gate_up), static_cast<void>(down);
    return 0;
  }
  /// Memory that is free now, where the device has its own; else 0, and budgets are about the host's memory.
  virtual std::size_t free_bytes() const { return 0; }
  virtual void synchronize() = 0;

  // Copies between host and device, complete on return.
  virtual void write_floats(std::span<const float> from, void* to) = 0;
  /// Rows [first, first + count) of `from` as floats, dense. int8 blocks are expanded.
  virtual void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) = 0;

  /// Once, before the first step. @throws std::runtime_error where there is no memory for steps of this size.
  virtual void prepare_steps(const StepLimits& limits) = 0;
  /// Makes `batch` the step that the ops below compute. It must live until the next one begins, and be within the limits.
  virtual StepRows begin_step(const StepBatch& batch) = 0;
  /// Runs the ops of the step: `walk` calls them, and collectives, in order. A device may record them and later run the recording in place
  /// of `walk`, for steps that have the same shape; so `walk` must do the same for every step with these StepRows and host code in it must
  /// not matter.
  virtual void run_step(const std::function<void()>& walk) { walk(); }
  /// Within run_step, before a communicator over host memory reads or writes `matrix`: the ops before it are complete on return. Of no
  /// interest where the communicator orders itself with the device's ops.
  virtual void begin_host_access(const Matrix& matrix) { static_cast<void>(matrix); }

  // Ops. Those that take no number of rows work on the tokens, or on the logit rows, of the step.

  /// out row t = the row of token t in `table`, expanded; +0 where the table does not have it (also instead of -0). The table holds the ids
  /// from `first_id` on; a null table has none. @pre out is kFloat32.
  virtual void embed(const Weight* table, std::int32_t first_id, const Matrix& out) = 0;
  /// out row i = from row logit_rows[i] of the step. Both kFloat32, as many columns.
  virtual void select_logit_rows(const Matrix& from, const Matrix& out) = 0;
  /// out = the norm of x. x kFloat32; out of either type.
  virtual void norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) = 0;
  /// x += delta (+ bias [columns], if there is one: (delta + bias) is added). Both kFloat32.
  virtual void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) = 0;
  /// add, then the norm of x into `out`.
  virtual void add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                        const Matrix& out) = 0;
  /// add_norm of a sum that need not stand anywhere: each row is added up where its norm is taken. What `delta` refers to is needed until
  /// begin_host_access() or the end of the step. Only where the host's memory is the device's.
  virtual void sum_add_norm(const Matrix& x, const SumOfParts& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                            const Matrix& out);
  /// Root r of the product goes to rows [r * num_rows, (r + 1) * num_rows) of `out`: with one root, out = in W^T (+ bias [rows of W]).
  /// The product stands in columns [out_column, out_column + rows of W) of `out`: stacked products of several types share one matrix.
  /// `in` is of the type that activation_for() names for W, or another that multiplies() admits. out: kFloat32, num_roots x num_rows rows.
  virtual void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
                      std::size_t out_column = 0) = 0;
  /// Rotates the queries of `qkv` in place, and the keys on their way into the cache; values go there as they are.
  /// qkv kFloat32 [T, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values. A null table rotates nothing.
  virtual void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                                 std::size_t layer) = 0;
  /// Causal attention of the queries in `qkv` over the cache, as stored. out of either type, [T, num_heads * head_dim].
  /// sinks: fp32 [num_heads] in device memory, a score of each head that takes part in the softmax and has no value; null: there are none.
  virtual void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out,
                         const float* sinks = nullptr) = 0;
  /// out = gate and up, made one. gate_up kFloat32 [T, 2 * n]: gate, then up. out of either type, [T, n].
  virtual void gated(const Gating& gating, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) = 0;
  /// out = function(x). x kFloat32 [T, n]; out of either type, [T, n].
  virtual void activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) = 0;
  // Ops in place, on kFloat32.

  /// x row t += row (position of token t + offset) of `table`, expanded.
  virtual void add_positions(const Weight& table, std::size_t offset, const Matrix& x) = 0;
  /// x *= factor.
  virtual void scale(const Matrix& x, std::size_t num_rows, float factor) = 0;
  /// x = cap * tanh(x / cap).
  virtual void soft_cap(const Matrix& x, std::size_t num_rows, float cap) = 0;
  /// x row t *= sigmoid(gates row t). gates [T, 1].
  virtual void gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) = 0;
  /// The norm of each of the heads in columns [first_column, first_column + num_heads * head_dim) by itself; weight [head_dim].
  virtual void norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                          const Norm& norm) = 0;

  /// The square sum of each of those heads: row h * num_rows + t of `out` [num_heads * T, 1].
  virtual void square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                            const Matrix& out) = 0;
  /// x = x / sqrt(square / norm_columns + eps) * weight in columns [first_column, first_column + num_columns). squares [T, 1]; weight
  /// [num_columns].
  virtual void norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns,
                              const Matrix& squares, std::size_t norm_columns, const float* weight, float eps) = 0;

  /// out[t, e] = the weight of expert e for token t, 0 where it is not chosen. logits, out kFloat32 [T, experts].
  virtual void route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) = 0;
  /// out = the sum over the chosen experts of weight * down(gate and up, made one), leaf by leaf: experts ascending, then the leaves to
  /// roots as `leaves` says (docs/numerics.md, "Experts"). h [T, hidden] of the type that activation_for() names for gate and up; routing
  /// [T, experts] of route(), of which at most `per_token` are not 0 in a row, or all are NaN; out kFloat32 as that of linear().
  virtual void experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::size_t per_token, std::span<const Expert> experts,
                       const Gating& gating, std::span<const Leaf> leaves, const Matrix& out) = 0;

  /// out = x as the other type.
  virtual void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) = 0;
  /// Finds the top of each row of logits; read_tops() then has them.
  virtual void top_of_rows(const Matrix& logits, std::size_t num_rows) = 0;
  /// linear with one root into all columns of `logits`, and top_of_rows of it, which a device may do while the products are at hand.
  /// @param selection  the rows of the selection that will follow, if one does: a device may begin with them as well
  virtual void linear_top(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& logits,
                          std::span<const SelectionRow> selection) {
    static_cast<void>(selection);
    linear(in, num_rows, weight, bias, logits);
    top_of_rows(logits, num_rows);
  }
  /// The first tops of the latest top_of_rows(), complete on return.
  virtual void read_tops(std::span<Top> tops) = 0;

  // Selection from rows of logits that stay where they are: begin, then peaks summed up over the ranks (every other rank's are +0), then
  // finish. Outside of run_step, after top_of_rows() of the same logits. `logits` may have no column: the rank's part of the vocabulary is
  // empty.

  /// The most that a selection will ever hold on this rank; once, after prepare_steps(), before the first one.
  /// @param runs  of the segments of this rank
  virtual void prepare_selection(std::size_t max_rows, std::span<const SegmentRun> runs) = 0;
  /// Changes the logits, and writes peaks [num_ranks][rows of the selection][kPeakSize], fp32 in device memory: what this rank knows at its
  /// place, maxima of -infinity where there is no column, and +0 at the places of all others. `changes` have ids relative to the rank's
  /// first one. What `selection` refers to is needed until read_selection().
  virtual void begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* peaks) = 0;
  /// Sums and candidates, given the peaks of all ranks; then the logits are as they were.
  virtual void finish_selection(const Matrix& logits, const Selection& selection, std::size_t num_ranks, const float* peaks) = 0;
  /// What was found, as a SelectionLayout of (selection.rows, columns, runs) says; complete on return. Candidates have ids relative to the
  /// rank's first one, and the logits of the row as it is; they are in no order. Memory of the device object, valid until the next
  /// selection begins.
  virtual std::span<const std::byte> read_selection() = 0;
};

}  // namespace lockstep::device
