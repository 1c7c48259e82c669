#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "device/cpu/attention.h"
#include "device/cpu/int8_matrix.h"
#include "device/cpu/kernels.h"
#include "device/cpu/linear_weight.h"
#include "device/cpu/memory.h"
#include "device/cpu/row_copies.h"
#include "device/cpu/step_program.h"
#include "device/cpu/thread_pool.h"
#include "device/cpu/weight.h"

namespace lockstep::device {
namespace cpu {
namespace {

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

using Use = Access::Use;

/// The rows, or columns, [first, end) of `count` that a thread does.
struct Share {
  std::size_t first, end;
};
Share share_of(std::size_t count, std::size_t thread, std::size_t num_threads) {
  return {count * thread / num_threads, count * (thread + 1) / num_threads};
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : kernels_(kernels_for(options.isa)),
        pool_(options.num_threads),
        copies_(pool_.size()),
        attention_(pool_.size(), kernels_),
        scratch_(pool_.size()) {}

  std::string description() const override {
    return "cpu " + std::string(isa_name(kernels_.isa)) + ", " + std::to_string(pool_.size()) +
           (pool_.size() == 1 ? " thread" : " threads");
  }

  std::string numerics() const override { return "cpu"; }

  Activation activation_for(DType weight) const override { return cpu_activation_for(weight); }

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
    const std::size_t parts = pool_.size() > 1 && spec.parts > 1 && spec.rows % spec.parts == 0 ? spec.parts : 1;
    const std::size_t rows = spec.rows / parts;
    std::vector<std::unique_ptr<CpuWeight>> packed;
    for (std::size_t part = 0; part < parts; ++part) {
      WeightSpec own = spec;
      own.rows = rows;
      const ReadRows read_part = [&](std::size_t first, std::size_t count, std::span<std::byte> to) {
        read(part * rows + first, count, to);
      };
      packed.push_back(load_cpu_weight(std::move(own), kernels_.q8_offset, read_part, pool_, arena_));
    }
    return std::make_unique<LinearWeight>(std::move(spec), std::move(packed));
  }

  std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) override {
    require(spec.block_size > 0 && spec.block_size % kLanes == 0, "the block size of a KV cache must be a multiple of 16");
    require(!info(spec.dtype).block_quantised() && spec.quantised == KvQuantisation::kNone,
            "the CPU device keeps keys and values as float32, float16 or bfloat16 (--kv-cache-dtype); 8 bits need a GPU");
    return std::make_unique<CpuKvCache>(spec);
  }

  void synchronize() override { flush(); }

  void write_floats(std::span<const float> from, void* to) override {
    flush();
    copies_.invalidate_all();
    if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
  }

  void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) override {
    flush();
    require(to.size() >= count * from.columns, "read_floats: no room for the rows");
    if (from.type == Activation::kFloat32) {
      if (count * from.columns > 0)
        std::memcpy(to.data(), floats_of(from, first + count) + first * from.columns, count * from.columns * sizeof(float));
      return;
    }
    const Int8View view = int8_of(from, first + count);
    for (std::size_t row = first; row < first + count; ++row) expand_row(view, row, from.columns, to.data() + (row - first) * from.columns);
  }

  void prepare_steps(const StepLimits&) override {}

  StepRows begin_step(const StepBatch& batch) override {
    flush();
    step_ = &batch;
    attention_.forget_plan();
    attention_.end_calls();
    copies_.invalidate_all();
    product_ = {};
    return {batch.num_tokens(), batch.logit_rows.size()};
  }

  void run_step(const std::function<void()>& walk) override {
    const Recording recording(*this);
    walk();
    if (rotation_.rows != nullptr) throw std::logic_error("rotate_and_append: no attention followed");
    flush();
  }

  void begin_host_access(const Matrix& matrix) override {
    flush();
    copies_.set_valid(matrix, false);
  }

  void embed(const Weight* table, std::int32_t first_id, const Matrix& out) override {
    const std::size_t tokens = step().num_tokens();
    floats_of(out, tokens);
    const LinearWeight* weight = static_cast<const LinearWeight*>(table);
    if (weight != nullptr) {
      require(out.columns == weight->spec().columns, "embed: the columns of the table and of the output differ");
      require(weight->num_parts() == 1, "embed: the table has parts");
      reserve_scratch(row_bytes(weight->spec().dtype, out.columns));
    }
    into_rows({}, out, tokens, [this, weight, first_id, columns = out.columns](std::size_t thread, std::size_t t, float* to) {
      const std::span row(to, columns);
      const std::int64_t index = std::int64_t{step_->token_ids[t]} - first_id;
      if (weight == nullptr || index < 0 || index >= static_cast<std::int64_t>(weight->spec().rows)) {
        std::fill(row.begin(), row.end(), 0.0f);
        return;
      }
      const std::span stored(scratch_[thread].data(), row_bytes(weight->spec().dtype, columns));
      unpack_row(weight->part(0).shape(), weight->part(0).data(), static_cast<std::size_t>(index), stored);
      dequantise(weight->spec().dtype, stored, row);
      for (float& value : row) value += 0.0f;  // -0 becomes +0, as it does where the rows of other ranks are added
    });
  }

  void select_logit_rows(const Matrix& from, const Matrix& out) override {
    require(from.columns == out.columns, "select_logit_rows: the columns differ");
    const std::size_t rows = step().logit_rows.size();
    if (rows > 0) floats_of(from, std::size_t{step().logit_rows.back()} + 1);
    floats_of(out, rows);
    const RowPlace source = step().num_tokens() == 1 ? copies_.find(from) : RowPlace{from};
    into_rows(read_of(source), out, rows, [this, source](std::size_t thread, std::size_t t, float* to) {
      const Matrix rows_of_thread = copies_.at(source, thread);
      std::memcpy(to, static_cast<const float*>(rows_of_thread.data) + step_->logit_rows[t] * rows_of_thread.columns,
                  rows_of_thread.columns * sizeof(float));
    });
  }

  void rms_norm(const Matrix& x, std::size_t num_rows, const float* weight, float eps, const Matrix& out) override {
    require(x.columns == out.columns, "rms_norm: the columns differ");
    floats_of(x, num_rows);
    if (for_all(num_rows)) copy_row(x);
    const RowPlace source = copies_.find(x);
    into_rows(read_of(source), out, num_rows, [this, source, weight, eps](std::size_t thread, std::size_t t, float* to) {
      const Matrix from = copies_.at(source, thread);
      kernels_.rms_norm(static_cast<const float*>(from.data) + t * from.columns, from.columns, weight, eps, to);
    });
  }

  void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) override {
    require(x.columns == delta.columns, "add: the columns differ");
    float* to = floats_of(x, num_rows);
    const float* from = floats_of(delta, num_rows);
    copies_.set_valid(x, false);
    submit({{x.data, Use::kWrite}, {delta.data, Use::kRead}}, [=, this, columns = x.columns](std::size_t thread) {
      const Share rows = share_of(num_rows, thread, pool_.size());
      for (std::size_t t = rows.first; t < rows.end; ++t) kernels_.add(to + t * columns, from + t * columns, bias, columns);
    });
  }

  void add_rms_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const float* weight, float eps,
                    const Matrix& out) override {
    if (for_all(num_rows)) {
      require(x.columns == delta.columns && x.columns == out.columns, "add_rms_norm: the columns differ");
      floats_of(x, num_rows);
      const float* from = floats_of(delta, num_rows);
      copy_row(x);
      const RowPlace sum = copies_.find(x);
      submit({{x.data, Use::kWriteCopy}, {delta.data, Use::kRead}}, [=, this](std::size_t thread) {
        kernels_.add(static_cast<float*>(copies_.at(sum, thread).data), from, bias, sum.real.columns);
      });
      return rms_norm(x, num_rows, weight, eps, out);
    }
    require(x.columns == delta.columns && x.columns == out.columns, "add_rms_norm: the columns differ");
    float* to = floats_of(x, num_rows);
    const float* from = floats_of(delta, num_rows);
    copies_.set_valid(x, false);
    const RowAccesses accesses{{{x.data, Use::kWrite}, {delta.data, Use::kRead}}};
    into_rows(accesses, out, num_rows, [=, this, columns = x.columns](std::size_t, std::size_t t, float* normed) {
      kernels_.add(to + t * columns, from + t * columns, bias, columns);
      kernels_.rms_norm(to + t * columns, columns, weight, eps, normed);
    });
  }

  void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
              std::size_t out_column) override {
    const LinearWeight& w = static_cast<const LinearWeight&>(weight);
    const std::size_t roots = w.num_roots();
    require(in.columns == w.spec().columns && out_column + w.spec().rows <= out.columns, "linear: the matrices do not fit the weight");
    require(bias == nullptr || roots == 1, "linear: a bias needs a product with one root");
    float* to = floats_of(out, roots * num_rows) + out_column;
    const bool blocks = info(w.spec().dtype).block_quantised();
    if (blocks) {
      int8_of(in, num_rows);
    } else {
      floats_of(in, num_rows);
    }
    copies_.set_valid(out, false);
    product_ = {&w, out.data, out_column, num_rows};
    if (num_rows == 0 || w.spec().rows == 0) return;
    reserve_scratch(kernels_.linear_scratch_bytes(w.spec().dtype, num_rows));
    const RowPlace source = num_rows == 1 ? copies_.find(in) : RowPlace{in};
    submit({read_of(source)[0], {out.data, Use::kWritePart, &w}}, [=, this, &w, stride = out.columns](std::size_t thread) {
      multiply(thread, copies_.at(source, thread), num_rows, w, bias, to, stride);
    });
  }

  void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                         std::size_t layer) override {
    const StepBatch& batch = step();
    const CacheView view = checked_cache(qkv, spec, cache, layer);
    float* rows = floats_of(qkv, batch.num_tokens());
    if (table) check_table(*table, batch, spec.head_dim);
    attention_.plan(batch, spec, spec.head_dim);
    if (recording_ && attention_.can_append()) {  // attention will do it
      rotation_ = {rows, &cache, layer, table};
      return;
    }
    reserve_scratch(spec.head_dim * sizeof(float));
    copies_.set_valid(qkv, false);
    submit({{qkv.data, Use::kWrite}, {view.cache, Use::kWrite}},
           [=, this, columns = qkv.columns, heads = spec.num_heads, kv_heads = spec.num_kv_heads](std::size_t thread) {
             const Share tokens = share_of(step_->num_tokens(), thread, pool_.size());
             for (std::size_t token = tokens.first; token < tokens.end; ++token) {
               append_token(rows + token * columns, token, heads, kv_heads, table, view, reinterpret_cast<float*>(scratch_[thread].data()));
             }
           });
  }

  void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out) override {
    const StepBatch& batch = step();
    AttentionCall call;
    call.cache = checked_cache(qkv, spec, cache, layer);
    require(out.columns == spec.num_heads * spec.head_dim, "attention: the output must have num_heads * head_dim columns");
    const std::size_t tokens = batch.num_tokens();
    call.qkv = floats_of(qkv, tokens);
    call.qkv_columns = qkv.columns;
    call.scale = spec.scale;
    call.window = spec.window;
    attention_.plan(batch, spec, spec.head_dim);
    if (rotation_.rows != nullptr) {
      if (rotation_.rows != call.qkv || rotation_.cache != &cache || rotation_.layer != layer)
        throw std::logic_error("attention: its queries were not the last that were rotated");
      call.appends = true;
      call.table = rotation_.table;
      rotation_ = {};
    }
    call.counters = attention_.begin_call();
    const bool rounds_later = out.type == Activation::kInt8Blocks && spec.head_dim % kBlock != 0;
    if (out.type == Activation::kFloat32) {
      call.floats = floats_of(out, tokens);
    } else if (!rounds_later) {
      call.int8 = int8_of(out, tokens);
    } else {
      if (attended_.size() < tokens * out.columns) attended_.resize(tokens * out.columns);
      call.floats = attended_.data();
    }
    const void* written = rounds_later ? attended_.data() : out.data;
    copies_.set_valid(out, false);
    submit({{qkv.data, Use::kRead}, {call.cache.cache, call.appends ? Use::kWrite : Use::kRead}, {written, Use::kWrite}},
           [this, call](std::size_t thread) { attention_.run(call, thread); });
    if (rounds_later) convert({attended_.data(), out.columns, tokens, Activation::kFloat32}, tokens, out);
  }

  void swiglu(const Matrix& gate_up, std::size_t num_rows, const Matrix& out) override {
    require(gate_up.columns == 2 * out.columns, "swiglu: the input must have twice the columns of the output");
    const float* from = floats_of(gate_up, num_rows);
    const bool blocks = out.type == Activation::kInt8Blocks;
    float* floats = blocks ? nullptr : floats_of(out, num_rows);
    const Int8View int8 = blocks ? int8_of(out, num_rows) : Int8View{};
    // The thread that has a share of the gate has the same of up: it finds what it wrote itself.
    const LinearWeight* own = shares_of_product(gate_up, num_rows, blocks ? kBlock : 1);
    const std::size_t n = out.columns, unit = blocks ? kBlock : kLanes;
    if (blocks) reserve_scratch(n * sizeof(float));
    copies_.set_valid(out, false);
    submit({{gate_up.data, Use::kRead, own}, {out.data, Use::kWrite}}, [=, this](std::size_t thread) {
      Share columns = share_of((n + unit - 1) / unit, thread, pool_.size());
      columns = {std::min(columns.first * unit, n), std::min(columns.end * unit, n)};
      if (own != nullptr) columns = {own->share_row(thread), own->share_row(thread + 1)};
      const std::size_t count = columns.end - columns.first;
      if (count == 0) return;
      for (std::size_t t = 0; t < num_rows; ++t) {
        float* to = blocks ? reinterpret_cast<float*>(scratch_[thread].data()) : floats + t * n + columns.first;
        kernels_.swiglu(from + 2 * t * n + columns.first, from + (2 * t + 1) * n + columns.first, count, to);
        if (!blocks) continue;
        const std::size_t entry = t * int8.blocks + columns.first / kBlock;
        kernels_.quantise(to, count / kBlock, int8.quants + t * int8.stride + columns.first, int8.scales + entry, int8.scaled_sums + entry,
                          int8.sums + entry);
      }
    });
  }

  void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    require(x.columns == out.columns, "convert: the columns differ");
    if (x.type == out.type) throw std::invalid_argument("convert: both matrices have the same type");
    const bool expands = x.type == Activation::kInt8Blocks;
    if (expands) {
      int8_of(x, num_rows);
    } else {
      floats_of(x, num_rows);
    }
    if (for_all(num_rows)) copy_row(x);
    const RowPlace source = copies_.find(x);
    into_rows(read_of(source), out, num_rows, [this, source, expands](std::size_t thread, std::size_t t, float* to) {
      const Matrix from = copies_.at(source, thread);
      if (expands) return expand_row(int8_view(from), t, from.columns, to);
      std::memcpy(to, static_cast<const float*>(from.data) + t * from.columns, from.columns * sizeof(float));
    });
  }

  void top_of_rows(const Matrix& logits, std::size_t num_rows) override {
    const float* rows = floats_of(logits, num_rows);
    const LinearWeight* own = shares_of_product(logits, num_rows, 1);
    tops_.resize(num_rows * pool_.size());
    submit({{logits.data, Use::kRead, own}}, [=, this, n = logits.columns](std::size_t thread) {
      Share columns = share_of(n, thread, pool_.size());
      if (own != nullptr) columns = {own->share_row(thread), own->share_row(thread + 1)};
      for (std::size_t t = 0; t < num_rows; ++t) {
        Top top = kernels_.top(rows + t * n + columns.first, columns.end - columns.first);
        if (top.id >= 0) top.id += static_cast<std::int32_t>(columns.first);
        tops_[t * pool_.size() + thread] = top;
      }
    });
  }

  void read_tops(std::span<Top> tops) override {
    flush();
    require(tops.size() * pool_.size() <= tops_.size(), "read_tops: fewer tops were found");
    for (std::size_t t = 0; t < tops.size(); ++t) {
      Top best;
      for (std::size_t thread = 0; thread < pool_.size(); ++thread) {
        const Top& part = tops_[t * pool_.size() + thread];
        const bool finite = best.finite && part.finite;
        if (part.id >= 0 && (best.id < 0 || part.logit > best.logit)) best = part;
        best.finite = finite;
      }
      tops[t] = best;
    }
  }

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

  /// Queries, keys and values that attention is to rotate and append.
  struct Rotation {
    const float* rows = nullptr;
    const KvCache* cache = nullptr;
    std::size_t layer = 0;
    const RotaryTable* table = nullptr;
  };
  /// The latest product, whose output its reader may find shared out as it needs it.
  struct Product {
    const LinearWeight* weight = nullptr;
    const void* out = nullptr;
    std::size_t out_column = 0;
    std::size_t num_rows = 0;
  };

  const StepBatch& step() const {
    if (step_ == nullptr) throw std::logic_error("no step has begun");
    return *step_;
  }

  template <class Op>
  void submit(std::initializer_list<Access> accesses, const Op& op) {
    if (recording_) return program_.add({accesses.begin(), accesses.size()}, op);
    const FloatMode mode;
    pool_.run(op);
  }

  void flush() {
    if (program_.empty()) return;
    const FloatMode mode;
    program_.run(pool_);
  }

  void reserve_scratch(std::size_t bytes) {
    for (auto& scratch : scratch_) {
      if (scratch.size() < bytes) scratch.resize(bytes);
    }
  }

  /// Whether an op on so many rows is done by every thread for itself: sooner done than handed out.
  bool for_all(std::size_t num_rows) const { return recording_ && num_rows == 1; }

  RowPlace place_of(const Matrix& matrix) { return copies_.place(matrix, matrix_bytes(matrix.type, 1, matrix.columns)); }

  static RowAccesses read_of(const RowPlace& place) {
    return {{{place.real.data, place.offset == RowPlace::kNone ? Use::kRead : Use::kReadCopy}, {}}};
  }

  /// Gives every thread its copy of a row that stands in `x` only.
  void copy_row(const Matrix& x) {
    if (copies_.find(x).offset != RowPlace::kNone) return;
    const RowPlace place = place_of(x);
    submit({{x.data, Use::kRead}}, [=, this](std::size_t thread) {
      if (thread == 0) return;
      const Matrix to = copies_.at(place, thread);
      if (to.type == Activation::kFloat32) {
        std::memcpy(to.data, place.real.data, to.columns * sizeof(float));
        return;
      }
      const Int8View from_view = int8_view(place.real), to_view = int8_view(to);
      std::memcpy(to_view.quants, from_view.quants, to.columns);
      std::memcpy(to_view.scales, from_view.scales, to_view.blocks * sizeof(float));
      std::memcpy(to_view.scaled_sums, from_view.scaled_sums, to_view.blocks * sizeof(float));
      std::memcpy(to_view.sums, from_view.sums, to_view.blocks * sizeof(std::int32_t));
    });
    copies_.set_valid(x, true);
  }

  /// op(thread, row, floats to fill) for every row of `out`, quantised afterwards where `out` is. A single row is done by every thread,
  /// into its copy.
  template <class Op>
  void into_rows(const RowAccesses& reads, const Matrix& out, std::size_t num_rows, const Op& op) {
    const bool blocks = out.type == Activation::kInt8Blocks, all = for_all(num_rows);
    if (blocks) {
      int8_of(out, num_rows);
      reserve_scratch(out.columns * sizeof(float));
    } else {
      floats_of(out, num_rows);
    }
    const RowPlace target = all ? place_of(out) : RowPlace{out};
    submit({reads[0], reads[1], {out.data, all ? Use::kWriteCopy : Use::kWrite}}, [=, this](std::size_t thread) {
      const Share rows = all ? Share{0, 1} : share_of(num_rows, thread, pool_.size());
      const Matrix to = copies_.at(target, thread);
      for (std::size_t t = rows.first; t < rows.end; ++t) {
        float* row = blocks ? reinterpret_cast<float*>(scratch_[thread].data()) : static_cast<float*>(to.data) + t * to.columns;
        op(thread, t, row);
        if (blocks) quantise_row(kernels_, row, int8_view(to), t);
      }
    });
    copies_.set_valid(out, all);
  }

  void multiply(std::size_t thread, const Matrix& in, std::size_t num_rows, const LinearWeight& w, const float* bias, float* out,
                std::size_t out_stride) {
    LinearArgs args{};
    args.dtype = w.spec().dtype;
    args.columns = w.spec().columns;
    args.leaves = w.spec().leaves.data();
    args.num_leaves = w.spec().leaves.size();
    args.num_tokens = num_rows;
    args.out_stride = out_stride;
    if (in.type == Activation::kInt8Blocks) {
      args.int8 = int8_view(in);
    } else {
      args.floats = static_cast<const float*>(in.data);
    }
    for (std::size_t part = 0; part < w.num_parts(); ++part) {
      const PackedShape& shape = w.part(part).shape();
      args.weights = w.part(part).data();
      args.rows = shape.rows;
      args.bias = bias == nullptr ? nullptr : bias + part * shape.rows;
      args.out = out + part * shape.rows;
      kernels_.linear(args, shape.share_begin(thread), shape.share_begin(thread + 1), scratch_[thread].data());
    }
  }

  /// The weight of the latest product if `matrix` is what it wrote, and every thread's share of columns begins at a multiple of `unit`.
  const LinearWeight* shares_of_product(const Matrix& matrix, std::size_t num_rows, std::size_t unit) const {
    const LinearWeight* weight = product_.weight;
    if (weight == nullptr || product_.out != matrix.data || product_.out_column != 0 || product_.num_rows != num_rows) return nullptr;
    if (weight->spec().rows != matrix.columns || weight->num_parts() != weight->spec().parts) return nullptr;
    for (std::size_t thread = 1; thread < pool_.size(); ++thread) {
      if (weight->share_row(thread) % unit != 0) return nullptr;
    }
    return weight;
  }

  static void expand_row(const Int8View& view, std::size_t row, std::size_t columns, float* to) {
    for (std::size_t i = 0; i < columns; ++i) {
      to[i] = view.scales[row * view.blocks + i / kBlock] * static_cast<float>(view.quants[row * view.stride + i]);
    }
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
    for (const std::int32_t position : batch.positions) {
      if (position < 0 || static_cast<std::size_t>(position) >= known) {
        throw std::out_of_range("position " + std::to_string(position) + " is outside the rotary table, which has " +
                                std::to_string(known));
      }
    }
  }

  void append_token(float* row, std::size_t token, std::size_t heads, std::size_t kv_heads, const RotaryTable* table,
                    const CacheView& cache, float* scratch) const {
    // Sequences are ascending and without gaps: the one of this token is the last that begins at or before it.
    const StepBatch& batch = *step_;
    const auto behind = std::upper_bound(batch.sequences.begin(), batch.sequences.end(), token,
                                         [](std::size_t t, const StepBatch::Sequence& sequence) { return t < sequence.first_token; });
    const StepBatch::Sequence& sequence = *(behind - 1);
    const std::size_t position = sequence.first_position + (token - sequence.first_token);
    attention_.append_token(row, static_cast<std::size_t>(batch.positions[token]), heads, kv_heads, table, cache,
                            batch.block_tables[sequence.block_table + position / cache.block_size], position % cache.block_size, scratch);
  }

  const Kernels& kernels_;
  const StepBatch* step_ = nullptr;
  std::vector<Top> tops_;  // [rows of top_of_rows, threads]: ids are of the whole row
  ThreadPool pool_;
  RowCopies copies_;
  AttentionRunner attention_;
  StepProgram program_;
  bool recording_ = false;
  Rotation rotation_;
  Product product_;
  Arena arena_;
  std::vector<std::vector<std::byte>> scratch_;  // of each thread
  std::vector<float> attended_;                  // attention results on their way to int8, where a head is not whole blocks
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
