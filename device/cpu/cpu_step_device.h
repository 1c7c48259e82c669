#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cpu/attention.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/crew.h"
#include "device/cpu/float_mode.h"
#include "device/cpu/int8_matrix.h"
#include "device/cpu/kernels.h"
#include "device/cpu/kv_cache.h"
#include "device/cpu/linear_weight.h"
#include "device/cpu/memory.h"
#include "device/cpu/row_copies.h"
#include "device/cpu/selection.h"
#include "device/cpu/step_counters.h"
#include "device/cpu/step_program.h"
#include "device/cpu/thread_pool.h"
#include "device/cpu/weight.h"
#include "device/device.h"

namespace lockstep::device::cpu {

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

inline float* floats_of(const Matrix& matrix, std::size_t rows) {
  require(matrix.type == Activation::kFloat32, "a kFloat32 matrix is needed here");
  require(rows <= matrix.capacity_rows, "more rows than the matrix has room for");
  return static_cast<float*>(matrix.data);
}

/// Row `row` of a matrix of either type.
inline RowOut row_out(const Matrix& matrix, std::size_t row) {
  if (matrix.type == Activation::kInt8Blocks) return {nullptr, int8_row(int8_view(matrix), row)};
  return {static_cast<float*>(matrix.data) + row * matrix.columns, {}};
}

inline Int8View int8_of(const Matrix& matrix, std::size_t rows) {
  require(matrix.type == Activation::kInt8Blocks, "a kInt8Blocks matrix is needed here");
  require(matrix.columns % kBlock == 0, "a kInt8Blocks matrix needs a multiple of 32 columns");
  require(rows <= matrix.capacity_rows, "more rows than the matrix has room for");
  return int8_view(matrix);
}

/// The top of two neighbouring parts of a row.
Top higher(const Top& first, const Top& behind);

using Use = Access::Use;

/// The rows, or columns, [first, end) of `count` that a thread does.
struct Share {
  std::size_t first, end;
};
inline Share share_of(std::size_t count, std::size_t thread, std::size_t num_threads) {
  return {count * thread / num_threads, count * (thread + 1) / num_threads};
}

/// make_cpu_device() makes it. In run_step with several threads, ops are put into a program; all threads then walk it together
/// (step_program.h). Anywhere else, and with one thread, an op is run by the time its call returns.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : kernels_(kernels_for(options.isa)),
        pool_(options.num_threads, options.processors, options.own_processors, options.walk ? Turn(Turn::Time{}) : Turn()),
        copies_(pool_.size()),
        attention_(pool_, kernels_),
        walk_(options.walk),
        selection_(pool_, options.isa),
        arenas_(pool_.size()),
        scratch_(pool_.size()) {}

  std::string description() const override;
  std::string numerics() const override { return "cpu"; }
  Activation activation_for(DType weight) const override { return cpu_activation_for(weight); }
  bool multiplies(DType weight, Activation activation) const override {
    return activation == Activation::kFloat32 || activation == activation_for(weight);
  }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::size_t matrix_bytes(Activation type, std::size_t rows, std::size_t columns) const override;
  std::unique_ptr<Weight> load_weight(WeightSpec spec, const ReadRows& read) override;
  std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) override;
  void synchronize() override { flush(); }
  void write_floats(std::span<const float> from, void* to) override;
  void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) override;
  void prepare_steps(const StepLimits& limits) override { attention_.prepare(limits); }
  StepRows begin_step(const StepBatch& batch) override;
  void run_step(const std::function<void()>& walk) override;
  void begin_host_access(const Matrix& matrix) override;
  void embed(const Weight* table, std::int32_t first_id, const Matrix& out) override;
  void select_logit_rows(const Matrix& from, const Matrix& out) override;
  void norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) override;
  void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) override;
  void add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                const Matrix& out) override;
  void sum_add_norm(const Matrix& x, const SumOfParts& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                    const Matrix& out) override;
  void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
              std::size_t out_column) override;
  void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                         std::size_t layer) override;
  void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out,
                 const float* sinks) override;
  void gated(const Gating& gating, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) override;
  void activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) override;
  void add_positions(const Weight& table, std::size_t offset, const Matrix& x) override;
  void scale(const Matrix& x, std::size_t num_rows, float factor) override;
  void soft_cap(const Matrix& x, std::size_t num_rows, float cap) override;
  void gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) override;
  void norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  const Norm& norm) override;
  void square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                    const Matrix& out) override;
  void norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, const Matrix& squares,
                      std::size_t norm_columns, const float* weight, float eps) override;
  void route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) override;
  void experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::size_t per_token, std::span<const Expert> experts,
               const Gating& gating, std::span<const Leaf> leaves, const Matrix& out) override;
  void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) override;
  void top_of_rows(const Matrix& logits, std::size_t num_rows) override;
  void linear_top(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& logits,
                  std::span<const SelectionRow> selection) override;
  void read_tops(std::span<Top> tops) override;
  void prepare_selection(std::size_t, std::span<const SegmentRun> runs) override { selection_.prepare(runs); }
  void begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* peaks) override;
  void finish_selection(const Matrix& logits, const Selection& selection, std::size_t num_ranks, const float* peaks) override;
  std::span<const std::byte> read_selection() override { return selection_.found(); }

  /// Within the latest program, for tests.
  std::size_t barriers() const { return program_.barriers(); }
  std::size_t openings() const { return program_.openings(); }

 private:
  using RowAccesses = std::array<Access, 2>;

  /// While it lives, ops are put into the program instead of being run: all threads will walk it together.
  class Recording {
   public:
    explicit Recording(CpuDevice& device) : device_(device) { device_.recording_ = device_.pool_.size() > 1; }
    ~Recording() {  // what is left was cut short by an exception
      device_.recording_ = false;
      device_.program_.clear();
      device_.rotation_ = {};
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    CpuDevice& device_;
  };

  /// While it lives, ops are run at once also within a step.
  class Pause {
   public:
    explicit Pause(CpuDevice& device) : device_(device), recorded_(device.recording_) { device_.recording_ = false; }
    ~Pause() { device_.recording_ = recorded_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    CpuDevice& device_;
    bool recorded_;
  };

  /// Rows [first, first + count) of all.
  struct Rows {
    std::size_t first, count, all;
  };

  struct UnitShare {
    std::size_t first, whole_end, end;
  };

  /// One of some parts of an op.
  struct PartOf {
    std::size_t index, count;
  };

  /// Queries, keys and values that attention is to rotate and append.
  struct Rotation {
    const float* rows = nullptr;
    const KvCache* cache = nullptr;
    std::size_t layer = 0;
    const RotaryTable* table = nullptr;
  };
  struct PartOfProduct {
    const LinearWeight* weight = nullptr;
    std::size_t part = 0;
    /// Of units of so many columns those that begin in the share of a thread: [first, whole_end) lie wholly in it, one behind them may not.
    UnitShare units(std::size_t thread, std::size_t columns) const {
      const std::size_t begin = weight->share_row(thread, part), end = weight->share_row(thread + 1, part);
      return {(begin + columns - 1) / columns, std::max(end / columns, (begin + columns - 1) / columns), (end + columns - 1) / columns};
    }
  };
  /// What linear() was called with.
  struct Product {
    RowPlace in;
    std::size_t num_rows;
    const LinearWeight* weight;
    const float* bias;
    float* out;
    std::size_t out_stride;
  };
  /// The latest product, or those whose outputs stand side by side in one matrix: its reader may find it shared out as it needs it.
  struct Products {
    std::array<const LinearWeight*, 3> weights{};
    std::size_t count = 0;
    const void* out = nullptr;
    std::size_t columns = 0;
    std::size_t num_rows = 0;
  };

  const StepBatch& step() const;
  Top top_of_row(std::size_t row) const;
  /// The top of columns [first, end) of a row of logits.
  Top top_of_columns(const float* row, std::size_t first, std::size_t end) const;
  Top sketch(std::size_t thread, const float* row, std::size_t t, Share columns, std::size_t to_next);

  template <class Op>
  void submit(std::initializer_list<Access> accesses, const Op& op) {
    if (recording_) return program_.add({accesses.begin(), accesses.size()}, op);
    const FloatMode mode;
    pool_.run(op);
  }

  /// op(thread, part) for each of `count` parts of a long op, one behind the other.
  template <class Op>
  void submit_parts(const RowAccesses& accesses, std::size_t count, const Op& op) {
    if (!recording_) count = 1;
    submit({accesses[0], accesses[1]}, [op, count](std::size_t thread) { op(thread, {0, count}); });
    for (std::size_t i = 1; i < count; ++i) program_.add_piece([op, i, count](std::size_t thread) { op(thread, {i, count}); });
  }

  /// op(thread, row) for every row, each thread its part.
  template <class Op>
  void over_rows(std::initializer_list<Access> accesses, std::size_t num_rows, const Op& op) {
    submit(accesses, [op, num_rows, threads = pool_.size()](std::size_t thread) {
      const Share rows = share_of(num_rows, thread, threads);
      for (std::size_t t = rows.first; t < rows.end; ++t) op(thread, t);
    });
  }

  /// The same for an op that changes rows of `x`, and reads those of another matrix.
  template <class Op>
  void change_rows(const Matrix& x, Access reads, std::size_t num_rows, const Op& op) {
    copies_.set_valid(x, false);
    over_rows({{x.data, Use::kWrite}, reads}, num_rows, op);
  }

  void flush();

  std::size_t reserve_table_row(const LinearWeight& table, std::size_t columns, std::size_t more = 0);
  /// A row of a table as floats, by the scratch memory of reserve_table_row.
  void expand_table_row(const LinearWeight& table, std::size_t index, std::size_t thread, std::span<float> row);

  Matrix scratch_matrix(std::vector<std::byte>& memory, Activation type, std::size_t rows, std::size_t columns) const;
  void sum_experts(const Matrix& h, Rows rows, const float* routing, std::span<const Expert> experts, const Gating& gating,
                   std::span<const Leaf> leaves, const Matrix& out);
  void add_leaves(Rows rows, std::span<const Leaf> leaves, const Matrix& out);

  void reserve_scratch(std::size_t bytes);

  /// Whether an op on so many rows is done by every thread for itself: sooner done than handed out.
  bool for_all(std::size_t num_rows) const;

  RowPlace place_of(const Matrix& matrix) { return copies_.place(matrix, matrix_bytes(matrix.type, 1, matrix.columns)); }

  static RowAccesses read_of(const RowPlace& place);

  void activate_columns(const Gating& gating, const Matrix& x, const LinearWeight* own, const float* up, std::size_t num_rows,
                        const Matrix& out);

  /// Gives every thread its copy of a row that stands in `x` only.
  void copy_row(const Matrix& x);

  /// op(thread, row, matrix) for every row of `out`. A single row is done by every thread, into its copy.
  template <class Op>
  void make_rows(const RowAccesses& reads, const Matrix& out, std::size_t num_rows, const Op& op) {
    if (out.type == Activation::kInt8Blocks) {
      int8_of(out, num_rows);
    } else {
      floats_of(out, num_rows);
    }
    const bool all = for_all(num_rows);
    const RowPlace target = all ? place_of(out) : RowPlace{out};
    submit({reads[0], reads[1], {out.data, all ? Use::kWriteCopy : Use::kWrite}}, [=, this](std::size_t thread) {
      const Share rows = all ? Share{0, 1} : share_of(num_rows, thread, pool_.size());
      const Matrix to = copies_.at(target, thread);
      for (std::size_t t = rows.first; t < rows.end; ++t) op(thread, t, to);
    });
    copies_.set_valid(out, all);
  }

  /// op(thread, row, floats to fill) for every row of `out`, quantised afterwards where `out` is.
  template <class Op>
  void into_rows(const RowAccesses& reads, const Matrix& out, std::size_t num_rows, const Op& op) {
    if (out.type == Activation::kInt8Blocks) reserve_scratch(out.columns * sizeof(float));
    make_rows(reads, out, num_rows, [op, this](std::size_t thread, std::size_t t, const Matrix& to) {
      const bool blocks = to.type == Activation::kInt8Blocks;
      float* row = blocks ? reinterpret_cast<float*>(scratch_[thread].data()) : static_cast<float*>(to.data) + t * to.columns;
      op(thread, t, row);
      if (blocks) kernels_.quantise(row, to.columns / kBlock, int8_row(int8_view(to), t));
    });
  }

  /// x += delta (+ bias) and the norm of it, where delta_of(thread, row) gives a row of delta, from what `delta` says.
  template <class DeltaOf>
  void add_and_norm(const Matrix& x, Access delta, std::size_t num_rows, const float* bias, const Norm& norm, const Matrix& out,
                    const DeltaOf& delta_of) {
    floats_of(x, num_rows);
    const bool all = for_all(num_rows);
    if (all) {
      copy_row(x);
    } else {
      copies_.set_valid(x, false);
    }
    const RowPlace sum = copies_.find(x);
    const RowAccesses accesses{{{x.data, all ? Use::kWriteCopy : Use::kWrite}, delta}};
    make_rows(accesses, out, num_rows, [=, this, columns = x.columns](std::size_t thread, std::size_t t, const Matrix& to) {
      float* row = static_cast<float*>(copies_.at(sum, thread).data) + t * columns;
      kernels_.norm(row, delta_of(thread, t), bias, columns, norm, row_out(to, t));
    });
  }

  /// Row `t` of a sum, added up in the thread's scratch memory that sum_add_norm() has reserved.
  const float* sum_row(const SumOfParts& sum, std::size_t columns, std::size_t thread, std::size_t t);

  float* begin_product(const Matrix& in, std::size_t num_rows, const LinearWeight& w, const float* bias, const Matrix& out,
                       std::size_t out_column);
  static LinearArgs product_args(const Matrix& in, std::size_t num_rows, const LinearWeight& w, std::size_t part);
  std::size_t pieces_of(const LinearWeight& w, const Matrix& in, std::size_t num_rows) const;
  static Share panels_of(const PackedShape& shape, std::size_t share, PartOf piece, std::size_t together);
  void multiply(std::size_t thread, const Product& product, std::size_t share, PartOf piece);
  void multiply_as_free(std::size_t thread, const Product& product, std::size_t pieces, std::size_t counters, bool to_the_end);

  void note_product(const LinearWeight& weight, const Matrix& out, std::size_t out_column, std::size_t num_rows);
  /// The weight of the latest product if `matrix` is what it wrote, packed in so many parts.
  const LinearWeight* shares_of_product(const Matrix& matrix, std::size_t num_rows, std::size_t parts) const;
  /// Whether every thread's share of the columns begins at a multiple of `unit`.
  bool shares_are_whole(const LinearWeight& weight, std::size_t unit) const;
  /// Columns [first, first + count) of what the latest products wrote as one part of a weight: that and the part; a null weight: they are
  /// not.
  PartOfProduct part_of_product(const Matrix& matrix, std::size_t num_rows, std::size_t first, std::size_t count) const;
  /// Whether `qkv` is what the latest products wrote, and queries, keys and values are packed as a part each.
  bool has_parts_of_heads(const Matrix& qkv, const AttentionSpec& spec) const;

  static void expand_quants(const Int8View& view, std::size_t row, std::size_t columns, float* to);

  /// The block table that a layer goes by.
  std::size_t table_of(const KvCache& cache, std::size_t layer) const;
  static CacheView checked_cache(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer);

  static void check_table(const RotaryTable& table, const StepBatch& batch, std::size_t head_dim);

  void append_token(float* row, std::size_t token, std::size_t heads, std::size_t kv_heads, const RotaryTable* table,
                    const CacheView& cache, std::size_t block_table, float* scratch) const;

  const Kernels& kernels_;
  const StepBatch* step_ = nullptr;
  std::vector<Top> tops_;  // [rows of top_of_rows, threads]: ids are of the whole row
  ThreadPool pool_;
  RowCopies copies_;
  AttentionRunner attention_;
  StepProgram program_;
  StepCounters counters_;
  Crew crew_;
  const std::optional<Walk> walk_;
  bool recording_ = false;
  Rotation rotation_;
  Products products_;
  CpuSelection selection_;
  std::vector<float> maxima_of_rows_;
  std::vector<Arena> arenas_;                    // of each thread
  std::vector<std::vector<std::byte>> scratch_;  // of each thread
  std::vector<std::byte> expert_memory_[4];      // rows of one expert: in, products, inner, partial sums
  std::vector<std::uint32_t> expert_rows_;
  std::vector<float> leaf_sums_;
  std::vector<float> attended_;  // attention results on their way to int8, where a head is not whole blocks
};

}  // namespace lockstep::device::cpu
