#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "device/cpu/attention.h"
#include "device/cpu/experts.h"
#include "device/cpu/int8_matrix.h"
#include "device/cpu/kernels.h"
#include "device/cpu/memory.h"
#include "device/cpu/selection.h"
#include "device/cpu/thread_pool.h"
#include "device/cpu/weight.h"

namespace lockstep::device {
namespace cpu {
namespace {

constexpr std::size_t kSmallProduct = std::size_t{48} << 10;  // bytes of weights x tokens that are done sooner than other threads wake
constexpr std::size_t kSmallRows = std::size_t{16} << 10;     // elements of a row op, likewise

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(std::size_t bytes) : size_(bytes), memory_(bytes + 64) {}
  void* data() override { return memory_.data(); }
  std::size_t size_bytes() const override { return size_; }

 private:
  std::size_t size_;
  HugeMemory memory_;
};

class SmallBuffer final : public Buffer {
 public:
  explicit SmallBuffer(std::size_t bytes) : size_(bytes), data_(::operator new (bytes, std::align_val_t{64})) {}
  ~SmallBuffer() override { ::operator delete (data_, std::align_val_t{64}); }
  SmallBuffer(const SmallBuffer&) = delete;
  SmallBuffer& operator=(const SmallBuffer&) = delete;
  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_; }

 private:
  std::size_t size_;
  void* data_;
};

class CpuKvCache final : public KvCache {
 public:
  explicit CpuKvCache(const KvCacheSpec& spec) : spec_(spec), memory_(spec.num_blocks * spec.bytes_per_block() + 64) {}
  const KvCacheSpec& spec() const override { return spec_; }
  CacheView layer(std::size_t layer) const {
    const std::size_t half = spec_.block_size * spec_.head_dim * info(spec_.dtype).block_bytes;
    const std::size_t block = 2 * half * spec_.num_kv_heads;
    return {memory_.data() + layer * spec_.num_blocks * block, block, 2 * half, half, spec_.block_size, spec_.head_dim, spec_.dtype};
  }

 private:
  KvCacheSpec spec_;
  HugeMemory memory_;  // 64 bytes longer: the last values are read as whole vectors
};

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

float* floats_of(const Matrix& matrix, std::size_t rows) {
  require(matrix.type == Activation::kFloat32, "a kFloat32 matrix is needed here");
  require(rows <= matrix.capacity_rows, "more rows than the matrix has room for");
  return static_cast<float*>(matrix.data);
}

Int8View int8_of(const Matrix& matrix, std::size_t rows) {
  require(matrix.type == Activation::kInt8Blocks, "a kInt8Blocks matrix is needed here");
  require(matrix.columns % kBlock == 0, "a kInt8Blocks matrix needs a multiple of 32 columns");
  require(rows <= matrix.capacity_rows, "more rows than the matrix has room for");
  return int8_view(matrix);
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : kernels_(kernels_for(options.isa)),
        pool_(options.num_threads),
        attention_(pool_, kernels_),
        selection_(pool_, options.isa),
        arenas_(options.num_threads),
        scratch_(options.num_threads) {}

  std::string description() const override {
    return "cpu " + std::string(isa_name(kernels_.isa)) + ", " + std::to_string(pool_.size()) +
           (pool_.size() == 1 ? " thread" : " threads");
  }

  std::string numerics() const override { return "cpu"; }

  Activation activation_for(DType weight) const override { return cpu_activation_for(weight); }
  bool multiplies(DType weight, Activation activation) const override {
    return activation == Activation::kFloat32 || activation == activation_for(weight);
  }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    if (bytes < (std::size_t{1} << 20)) return std::make_unique<SmallBuffer>(bytes);
    return std::make_unique<CpuBuffer>(bytes);
  }

  std::size_t matrix_bytes(Activation type, std::size_t rows, std::size_t columns) const override {
    if (type == Activation::kFloat32) return rows * columns * sizeof(float);
    require(type == Activation::kInt8Blocks, "the CPU device has no 16-bit activations");
    require(columns % kBlock == 0, "a kInt8Blocks matrix needs a multiple of 32 columns");
    return int8_matrix_bytes(rows, columns);
  }

  std::unique_ptr<Weight> load_weight(WeightSpec spec, const ReadRows& read) override {
    return load_cpu_weight(std::move(spec), kernels_.q8_offset, read, pool_, arenas_);
  }

  std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) override {
    require(spec.block_size > 0 && spec.block_size % kLanes == 0, "the block size of a KV cache must be a multiple of 16");
    require(!info(spec.dtype).block_quantised() && spec.quantised == KvQuantisation::kNone,
            "the CPU device keeps keys and values as float32, float16 or bfloat16 (--kv-cache-dtype); 8 bits need a GPU");
    return std::make_unique<CpuKvCache>(spec);
  }

  void synchronize() override {}

  void write_floats(std::span<const float> from, void* to) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
  }

  void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) override {
    require(to.size() >= count * from.columns, "read_floats: no room for the rows");
    if (from.type == Activation::kFloat32) {
      if (count * from.columns > 0)
        std::memcpy(to.data(), floats_of(from, first + count) + first * from.columns, count * from.columns * sizeof(float));
      return;
    }
    const Int8View view = int8_of(from, first + count);
    for (std::size_t row = first; row < first + count; ++row) {
      for (std::size_t i = 0; i < from.columns; ++i) {
        to[(row - first) * from.columns + i] =
            view.scales[row * view.blocks + i / kBlock] * static_cast<float>(view.quants[row * view.stride + i]);
      }
    }
  }

  void prepare_steps(const StepLimits&) override {}

  StepRows begin_step(const StepBatch& batch) override {
    step_ = &batch;
    return {batch.num_tokens(), batch.logit_rows.size()};
  }

  void embed(const Weight* table, std::int32_t first_id, const Matrix& out) override {
    const StepBatch& batch = step();
    float* to = floats_of(out, batch.num_tokens());
    const std::size_t columns = out.columns;
    if (table == nullptr) {
      std::fill_n(to, batch.num_tokens() * columns, 0.0f);
      return;
    }
    const CpuWeight& weight = static_cast<const CpuWeight&>(*table);
    reserve_table_row(weight, columns);
    over_rows(batch.num_tokens(), columns, [&](std::size_t thread, std::size_t t) {
      const std::span row(to + t * columns, columns);
      const std::int64_t index = std::int64_t{batch.token_ids[t]} - first_id;
      if (index < 0 || index >= static_cast<std::int64_t>(weight.spec().rows)) return std::fill(row.begin(), row.end(), 0.0f);
      expand_table_row(weight, static_cast<std::size_t>(index), thread, row);
      for (float& value : row) value += 0.0f;  // -0 becomes +0, as it does where the rows of other ranks are added
    });
  }

  void select_logit_rows(const Matrix& from, const Matrix& out) override {
    require(from.columns == out.columns, "select_logit_rows: the columns differ");
    const std::vector<std::uint32_t>& rows = step().logit_rows;
    float* to = floats_of(out, rows.size());
    for (std::size_t t = 0; t < rows.size(); ++t) {
      const float* row = floats_of(from, std::size_t{rows[t]} + 1) + rows[t] * from.columns;
      if (from.columns > 0) std::memcpy(to + t * out.columns, row, from.columns * sizeof(float));
    }
  }

  void norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) override {
    const FloatMode mode;
    require(x.columns == out.columns, "norm: the columns differ");
    const float* from = floats_of(x, num_rows);
    into_rows(num_rows, out, 1, [&](std::size_t t, float* row) { kernels_.norm(from + t * x.columns, x.columns, norm, row); });
  }

  void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) override {
    const FloatMode mode;
    require(x.columns == delta.columns, "add: the columns differ");
    float* to = floats_of(x, num_rows);
    const float* from = floats_of(delta, num_rows);
    over_rows(num_rows, x.columns,
              [&](std::size_t, std::size_t t) { kernels_.add(to + t * x.columns, from + t * x.columns, bias, x.columns); });
  }

  void add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                const Matrix& out) override {
    add(x, delta, num_rows, bias);
    this->norm(x, num_rows, norm, out);
  }

  void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
              std::size_t out_column) override {
    const FloatMode mode;
    const CpuWeight& w = static_cast<const CpuWeight&>(weight);
    const std::size_t roots = w.spec().num_roots();
    require(in.columns == w.spec().columns && out_column + w.spec().rows <= out.columns, "linear: the matrices do not fit the weight");
    require(bias == nullptr || roots == 1, "linear: a bias needs a product with one root");
    LinearArgs args{};
    args.dtype = w.spec().dtype;
    args.rows = w.spec().rows;
    args.columns = w.spec().columns;
    args.first_block = w.shape().first_block();
    args.panel_bytes = w.shape().panel_bytes();
    args.leaves = w.spec().leaves.data();
    args.num_leaves = w.spec().leaves.size();
    args.num_tokens = num_rows;
    args.bias = bias;
    args.out = floats_of(out, roots * num_rows) + out_column;
    args.out_stride = out.columns;
    if (info(args.dtype).block_quantised() && in.type == Activation::kInt8Blocks) {
      args.int8 = int8_of(in, num_rows);
    } else {
      args.floats = floats_of(in, num_rows);
    }
    if (num_rows == 0 || args.rows == 0) return;
    reserve_scratch(kernels_.linear_scratch_bytes(args));
    const auto share = [&](std::size_t thread, std::size_t scratch) {
      kernels_.linear(args, w.share(thread), w.shape().share_begin(thread), w.shape().share_begin(thread + 1), scratch_[scratch].data());
    };
    if (w.size_bytes() * num_rows <= kSmallProduct) {
      for (std::size_t thread = 0; thread < pool_.size(); ++thread) share(thread, 0);
    } else {
      pool_.run([&](std::size_t thread) { share(thread, thread); });
    }
  }

  void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                         std::size_t layer) override {
    const FloatMode mode;
    const StepBatch& batch = step();
    const CacheView view = checked_cache(qkv, spec, cache, layer);
    float* rows = floats_of(qkv, batch.num_tokens());
    if (table) check_table(*table, batch, spec.head_dim);
    reserve_scratch(spec.head_dim * sizeof(float));
    over_rows(batch.num_tokens(), qkv.columns, [&](std::size_t thread, std::size_t token) {
      // Sequences are ascending and without gaps: the one of this token is the last that begins at or before it.
      const auto behind = std::upper_bound(batch.sequences.begin(), batch.sequences.end(), token,
                                           [](std::size_t t, const StepBatch::Sequence& sequence) { return t < sequence.first_token; });
      const StepBatch::Sequence& sequence = *(behind - 1);
      const std::size_t position = sequence.first_position + (token - sequence.first_token);
      append_token(rows + token * qkv.columns, table && table->by_token ? token : static_cast<std::size_t>(batch.positions[token]), spec,
                   table, view, batch.block_tables[sequence.block_table + position / view.block_size], position % view.block_size,
                   reinterpret_cast<float*>(scratch_[thread].data()));
    });
  }

  void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out) override {
    const FloatMode mode;
    const StepBatch& batch = step();
    const CacheView view = checked_cache(qkv, spec, cache, layer);
    require(out.columns == spec.num_heads * spec.head_dim, "attention: the output must have num_heads * head_dim columns");
    const std::size_t tokens = batch.num_tokens();
    const float* rows = floats_of(qkv, tokens);
    if (out.type == Activation::kFloat32) {
      attention_.run(rows, qkv.columns, batch, spec, view, floats_of(out, tokens));
      return;
    }
    const Int8View to = int8_of(out, tokens);
    if (attended_.size() < tokens * out.columns) attended_.resize(tokens * out.columns);
    attention_.run(rows, qkv.columns, batch, spec, view, attended_.data());
    over_rows(tokens, out.columns, [&](std::size_t, std::size_t t) { quantise_row(kernels_, attended_.data() + t * out.columns, to, t); });
  }

  void gated(Nonlinearity function, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) override {
    const FloatMode mode;
    require(gate_up.columns == 2 * out.columns, "gated: the input must have twice the columns of the output");
    const float* from = floats_of(gate_up, num_rows);
    const std::size_t n = out.columns;
    into_rows(num_rows, out, 4,
              [&](std::size_t t, float* row) { kernels_.activate(function, from + 2 * t * n, from + (2 * t + 1) * n, n, row); });
  }

  void activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    const FloatMode mode;
    require(x.columns == out.columns, "activate: the columns differ");
    const float* from = floats_of(x, num_rows);
    into_rows(num_rows, out, 4,
              [&](std::size_t t, float* row) { kernels_.activate(function, from + t * x.columns, nullptr, x.columns, row); });
  }

  void add_positions(const Weight& table, std::size_t offset, const Matrix& x) override {
    const FloatMode mode;
    const StepBatch& batch = step();
    const CpuWeight& weight = static_cast<const CpuWeight&>(table);
    float* rows = floats_of(x, batch.num_tokens());
    const std::size_t offset_of_row = reserve_table_row(weight, x.columns, x.columns * sizeof(float));
    over_rows(batch.num_tokens(), x.columns, [&](std::size_t thread, std::size_t t) {
      const std::size_t index = static_cast<std::size_t>(batch.positions[t]) + offset;
      if (index >= weight.spec().rows) {
        throw std::out_of_range("position " + std::to_string(batch.positions[t]) + " is outside the table of positions, which has " +
                                std::to_string(weight.spec().rows) + " rows");
      }
      const std::span row(reinterpret_cast<float*>(scratch_[thread].data() + offset_of_row), x.columns);
      expand_table_row(weight, index, thread, row);
      kernels_.add(rows + t * x.columns, row.data(), nullptr, x.columns);
    });
  }

  void scale(const Matrix& x, std::size_t num_rows, float factor) override {
    const FloatMode mode;
    float* rows = floats_of(x, num_rows);
    over_rows(num_rows, x.columns, [&](std::size_t, std::size_t t) { kernels_.scale(rows + t * x.columns, x.columns, factor); });
  }

  void soft_cap(const Matrix& x, std::size_t num_rows, float cap) override {
    const FloatMode mode;
    float* rows = floats_of(x, num_rows);
    over_rows(num_rows, 4 * x.columns, [&](std::size_t, std::size_t t) { kernels_.soft_cap(rows + t * x.columns, x.columns, cap); });
  }

  void gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) override {
    const FloatMode mode;
    require(gates.columns == 1, "gate_rows: a gate has one column");
    float* rows = floats_of(x, num_rows);
    const float* from = floats_of(gates, num_rows);
    over_rows(num_rows, x.columns, [&](std::size_t, std::size_t t) {
      float exponential = 0.0f - from[t];
      kernels_.exponentials(&exponential, 1, &exponential);
      kernels_.scale(rows + t * x.columns, x.columns, 1.0f / (1.0f + exponential));
    });
  }

  void norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  const Norm& norm) override {
    const FloatMode mode;
    float* rows = columns_of(x, num_rows, first_column, num_heads * head_dim);
    over_rows(num_rows, num_heads * head_dim, [&](std::size_t, std::size_t t) {
      for (std::size_t head = 0; head < num_heads; ++head) {
        float* at = rows + t * x.columns + head * head_dim;
        kernels_.norm(at, head_dim, norm, at);
      }
    });
  }

  void square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                    const Matrix& out) override {
    const FloatMode mode;
    const float* rows = columns_of(x, num_rows, first_column, num_heads * head_dim);
    require(out.columns == 1, "square_heads: the output has one column");
    float* to = floats_of(out, num_heads * num_rows);
    over_rows(num_rows, num_heads * head_dim, [&](std::size_t, std::size_t t) {
      for (std::size_t head = 0; head < num_heads; ++head)
        to[head * num_rows + t] = kernels_.square_sum(rows + t * x.columns + head * head_dim, head_dim);
    });
  }

  void norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, const Matrix& squares,
                      std::size_t norm_columns, const float* weight, float eps) override {
    const FloatMode mode;
    float* rows = columns_of(x, num_rows, first_column, num_columns);
    const float* sums = floats_of(squares, num_rows);
    over_rows(num_rows, num_columns, [&](std::size_t, std::size_t t) {
      kernels_.norm_by_square(rows + t * x.columns, num_columns, sums[t] / static_cast<float>(norm_columns), weight, eps);
    });
  }

  void route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) override {
    const FloatMode mode;
    require(logits.columns == out.columns && routing.per_token > 0, "route: as many weights as logits are needed");
    const std::size_t n = logits.columns;
    const float* from = floats_of(logits, num_rows);
    float* to = floats_of(out, num_rows);
    reserve_scratch(n * sizeof(float));
    over_rows(num_rows, 4 * n, [&](std::size_t thread, std::size_t t) {
      route_row(kernels_, {from + t * n, n}, routing, {to + t * n, n}, {reinterpret_cast<float*>(scratch_[thread].data()), n});
    });
  }

  void experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::span<const Expert> experts, Nonlinearity function,
               std::span<const Leaf> leaves, const Matrix& out) override {
    require(routing.columns == experts.size(), "experts: as many weights as experts are needed");
    const auto roots =
        static_cast<std::size_t>(std::count_if(leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.ends_root; }));
    (void)floats_of(out, roots * num_rows);
    const auto rows = [&](std::size_t count, std::size_t cost, const std::function<void(std::size_t)>& op) {
      const FloatMode mode;
      over_rows(count, cost, [&](std::size_t, std::size_t row) { op(row); });
    };
    expert_sums_.run(*this, kernels_, rows, {h, num_rows, floats_of(routing, num_rows), experts, function, leaves, out});
  }

  void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    const FloatMode mode;
    require(x.columns == out.columns, "convert: the columns differ");
    if (x.type == out.type) throw std::invalid_argument("convert: both matrices have the same type");
    if (x.type == Activation::kInt8Blocks) return read_floats(x, 0, num_rows, std::span(floats_of(out, num_rows), num_rows * x.columns));
    const float* from = floats_of(x, num_rows);
    const Int8View to = int8_of(out, num_rows);
    over_rows(num_rows, x.columns, [&](std::size_t, std::size_t t) { quantise_row(kernels_, from + t * x.columns, to, t); });
  }

  void top_of_rows(const Matrix& logits, std::size_t num_rows) override {
    const FloatMode mode;
    tops_.resize(num_rows);
    const float* rows = floats_of(logits, num_rows);
    over_rows(num_rows, logits.columns,
              [&](std::size_t, std::size_t t) { tops_[t] = kernels_.top(rows + t * logits.columns, logits.columns); });
  }

  void read_tops(std::span<Top> tops) override {
    require(tops.size() <= tops_.size(), "read_tops: fewer tops were found");
    std::copy_n(tops_.begin(), tops.size(), tops.begin());
  }

  void prepare_selection(std::size_t, std::span<const SegmentRun> runs) override { selection_.prepare(runs); }

  void begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* maxima) override {
    const FloatMode mode;
    for (const SelectionRow& row : selection.rows)
      require(logits.columns == 0 || row.row < tops_.size(), "begin_selection: a row of which there is no top");
    maxima_of_rows_.resize(tops_.size());
    std::transform(tops_.begin(), tops_.end(), maxima_of_rows_.begin(), [](const Top& top) { return top.logit; });
    selection_.begin(floats_of(logits, 0), logits.columns, maxima_of_rows_, selection, rank, num_ranks, maxima);
  }

  void finish_selection(const Matrix& logits, const Selection& selection, std::size_t num_ranks, const float* maxima) override {
    const FloatMode mode;
    selection_.finish(floats_of(logits, 0), logits.columns, selection, num_ranks, maxima);
  }

  void read_selection(std::span<std::byte> found) override {
    require(found.size() >= selection_.size_bytes(), "read_selection: no room for what was found");
    selection_.read(found);
  }

 private:
  /// Scratch memory for expand_table_row, and `more` bytes behind it; returns where those begin.
  std::size_t reserve_table_row(const CpuWeight& table, std::size_t columns, std::size_t more = 0) {
    require(columns == table.spec().columns && table.spec().first_column == 0, "the columns of a table and of the rows differ");
    const std::size_t bytes = info(table.spec().dtype).block_quantised() ? 0 : row_bytes(table.spec().dtype, columns);
    reserve_scratch((bytes + 63) / 64 * 64 + more);
    return (bytes + 63) / 64 * 64;
  }

  /// A row of a table as floats.
  void expand_table_row(const CpuWeight& table, std::size_t index, std::size_t thread, std::span<float> row) {
    const DType dtype = table.spec().dtype;
    const std::size_t panel = index / kLanes, owner = table.shape().share_of(panel);
    const std::byte* share = table.share(owner);
    if (info(dtype).block_quantised()) {
      const std::byte* packed = share + (panel - table.shape().share_begin(owner)) * table.shape().panel_bytes();
      return kernels_.expand_row(dtype, packed, row.size(), index % kLanes, row.data());
    }
    const std::span stored(scratch_[thread].data(), row_bytes(dtype, row.size()));
    unpack_float_row(table.shape(), share, index, stored);
    dequantise(dtype, stored, row);
  }

  /// The floats of the first of these columns.
  static float* columns_of(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns) {
    require(first_column + num_columns <= x.columns, "the matrix has fewer columns");
    return floats_of(x, num_rows) + first_column;
  }

  const StepBatch& step() const {
    if (step_ == nullptr) throw std::logic_error("no step has begun");
    return *step_;
  }

  void reserve_scratch(std::size_t bytes) {
    for (auto& scratch : scratch_) {
      if (scratch.size() < bytes) scratch.resize(bytes);
    }
  }

  /// op(thread, row) for every row, on several threads where there is enough to do.
  template <class Op>
  void over_rows(std::size_t num_rows, std::size_t cost_of_row, const Op& op) {
    if (pool_.size() == 1 || num_rows < 2 || num_rows * cost_of_row <= kSmallRows) {
      for (std::size_t row = 0; row < num_rows; ++row) op(0, row);
      return;
    }
    pool_.run([&](std::size_t thread) {
      const std::size_t end = num_rows * (thread + 1) / pool_.size();
      for (std::size_t row = num_rows * thread / pool_.size(); row < end; ++row) op(thread, row);
    });
  }

  /// op(row, floats to fill) for every row of `out`; quantised afterwards where `out` is.
  template <class Op>
  void into_rows(std::size_t num_rows, const Matrix& out, std::size_t cost_of_element, const Op& op) {
    const std::size_t cost = out.columns * cost_of_element;
    if (out.type == Activation::kFloat32) {
      float* to = floats_of(out, num_rows);
      return over_rows(num_rows, cost, [&](std::size_t, std::size_t t) { op(t, to + t * out.columns); });
    }
    const Int8View to = int8_of(out, num_rows);
    reserve_scratch(out.columns * sizeof(float));
    over_rows(num_rows, cost, [&](std::size_t thread, std::size_t t) {
      float* row = reinterpret_cast<float*>(scratch_[thread].data());
      op(t, row);
      quantise_row(kernels_, row, to, t);
    });
  }

  static CacheView checked_cache(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer) {
    const CpuKvCache& own = static_cast<const CpuKvCache&>(cache);
    require(qkv.columns == (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
            "attention: qkv does not have (heads + 2 * KV heads) * head_dim columns");
    require(own.spec().num_kv_heads == spec.num_kv_heads && own.spec().head_dim == spec.head_dim && layer < own.spec().num_layers,
            "attention: the cache does not fit");
    return own.layer(layer);
  }

  static void check_table(const RotaryTable& table, const StepBatch& batch, std::size_t head_dim) {
    require(table.rotary_dim % 2 == 0 && table.rotary_dim <= head_dim, "rotary_dim must be even and at most head_dim");
    const std::size_t known =
        table.rotary_dim == 0 ? SIZE_MAX : std::min(table.cosines.size(), table.sines.size()) / (table.rotary_dim / 2);
    if (table.by_token) return require(known >= batch.num_tokens(), "the rotary table has fewer rows than the step has tokens");
    for (const std::int32_t position : batch.positions) {
      if (position < 0 || static_cast<std::size_t>(position) >= known) {
        throw std::out_of_range("position " + std::to_string(position) + " is outside the rotary table, which has " +
                                std::to_string(known));
      }
    }
  }

  void append_token(float* row, std::size_t table_row, const AttentionSpec& spec, const RotaryTable* table, const CacheView& cache,
                    std::uint32_t block, std::size_t offset, float* rotated) {
    const std::size_t half = table ? table->rotary_dim / 2 : 0;
    const float* cosines = table ? table->cosines.data() + table_row * half : nullptr;
    const float* sines = table ? table->sines.data() + table_row * half : nullptr;
    for (std::size_t head = 0; table && head < spec.num_heads; ++head) {
      kernels_.rotate(row + head * spec.head_dim, spec.head_dim, cosines, sines, half, row + head * spec.head_dim);
    }
    for (std::size_t head = 0; head < spec.num_kv_heads; ++head) {
      const float* key = row + (spec.num_heads + head) * spec.head_dim;
      const float* value = row + (spec.num_heads + spec.num_kv_heads + head) * spec.head_dim;
      if (table) {
        kernels_.rotate(key, spec.head_dim, cosines, sines, half, rotated);
        key = rotated;
      }
      kernels_.append(cache, block, head, offset, key, value);
    }
  }

  const Kernels& kernels_;
  const StepBatch* step_ = nullptr;
  std::vector<Top> tops_;
  std::vector<float> maxima_of_rows_;
  ThreadPool pool_;
  AttentionRunner attention_;
  CpuSelection selection_;
  std::vector<Arena> arenas_;                    // of each thread
  std::vector<std::vector<std::byte>> scratch_;  // of each thread
  std::vector<float> attended_;                  // attention results on their way to int8
  ExpertSums expert_sums_;
};

}  // namespace
}  // namespace cpu

Activation cpu_activation_for(DType weight) { return info(weight).block_quantised() ? Activation::kInt8Blocks : Activation::kFloat32; }

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  if (options.num_threads == 0) throw std::invalid_argument("a CPU device needs at least one thread");
  isa_from_name(isa_name(options.isa));
  return std::make_unique<cpu::CpuDevice>(options);
}

}  // namespace lockstep::device
