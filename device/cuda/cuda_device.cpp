#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>

#include "device/cuda/attention.h"
#include "device/cuda/cublas_linear.h"
#include "device/cuda/experts.h"
#include "device/cuda/in_place.h"
#include "device/cuda/linear.h"
#include "device/cuda/memory.h"
#include "device/cuda/recorded_steps.h"
#include "device/cuda/rows.h"
#include "device/cuda/selection.h"
#include "device/cuda/step_buffers.h"
#include "device/cuda/uploaded_tables.h"

namespace lockstep::device::cuda {
namespace {

constexpr int kOldestMajor = 8;  // mma.m16n8k16 for bf16, cp.async

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

class CudaBuffer final : public Buffer {
 public:
  explicit CudaBuffer(std::size_t bytes) : memory_(bytes, "activations and vectors") {}
  void* data() override { return memory_.data(); }
  std::size_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  DeviceMemory memory_;
};

HeadMap head_map(const AttentionSpec& spec) {
  HeadMap map{.num_heads = static_cast<std::uint32_t>(spec.num_heads),
              .num_kv_heads = static_cast<std::uint32_t>(spec.num_kv_heads),
              .head_dim = static_cast<std::uint32_t>(spec.head_dim)};
  // Heads of one KV head are neighbours, as many for each; the first and last KV head of a rank may have fewer of theirs here.
  const std::vector<std::uint32_t>& kv = spec.kv_head_of;
  require(kv.size() == spec.num_heads && !kv.empty(), "attention: every query head needs its KV head");
  std::vector<std::uint32_t> counts(spec.num_kv_heads, 0);
  for (const std::uint32_t head : kv) {
    require(head < spec.num_kv_heads, "attention: a query head reads a KV head that is not there");
    ++counts[head];
  }
  map.group = *std::max_element(counts.begin(), counts.end());
  map.offset = spec.num_kv_heads > 1 ? map.group - counts.front() : 0;
  for (std::size_t head = 0; head < kv.size(); ++head) {
    require((head + map.offset) / map.group == kv[head], "attention: the query heads of a KV head must be neighbours, as many for each");
  }
  return map;
}

class CudaDeviceOnStream final : public CudaDevice {
 public:
  explicit CudaDeviceOnStream(const CudaOptions& options) : options_(options), host_threads_(options.host_threads) {
    check(cudaSetDevice(options.ordinal), "choosing a GPU");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, options.ordinal), "asking for the properties of a GPU");
    name_ = properties.name;
    multiprocessors_ = properties.multiProcessorCount;
    compute_major_ = properties.major;
    compute_minor_ = properties.minor;
    if (properties.major < kOldestMajor) {
      throw std::runtime_error("GPU " + std::to_string(options.ordinal) + " (" + name_ + ") has compute capability " +
                               std::to_string(properties.major) + "." + std::to_string(properties.minor) + "; 8.0 is needed");
    }
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "creating an event");
    if (options.fast) cublas_ = std::make_unique<CublasLinear>();
  }

  ~CudaDeviceOnStream() override {
    recorded_.clear();
    if (done_ != nullptr) cudaEventDestroy(done_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const override { return stream_; }
  int num_multiprocessors() const override { return multiprocessors_; }
  void set_watch(Watch watch) override { watch_ = std::move(watch); }

  void forget_recordings() override { recorded_.forget(); }

  std::string description() const override { return "cuda " + std::to_string(options_.ordinal) + ", " + name_ + ", " + numerics(); }

  std::string numerics() const override {
    return "cuda sm_" + std::to_string(compute_major_) + std::to_string(compute_minor_) + (options_.fast ? " fast" : "");
  }

  Activation activation_for(DType weight) const override { return cuda::activation_for(weight); }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override { return std::make_unique<CudaBuffer>(bytes); }

  std::size_t matrix_bytes(Activation type, std::size_t rows, std::size_t columns) const override {
    require(type != Activation::kInt8Blocks, "the GPU has no int8 activations");
    return rows * row_stride(type, columns) * element_bytes(type);
  }

  std::unique_ptr<Weight> load_weight(WeightSpec spec, const ReadRows& read) override {
    auto weight = load_cuda_weight(std::move(spec), read, cublas_ ? PlainRows::kKeep : PlainRows::kDrop, &host_threads_);
    check(cudaDeviceSynchronize(), "uploading weights");
    return weight;
  }

  std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) override { return std::make_unique<CudaKvCache>(spec); }

  std::size_t experts_bytes(std::size_t max_tokens, std::size_t per_token, const WeightSpec& gate_up,
                            const WeightSpec& down) const override {
    return ExpertSums(max_tokens).memory_bytes(per_token, gate_up, down);
  }

  std::size_t free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for the free memory of a GPU");
    return free;
  }

  void synchronize() override {
    check(cudaEventRecord(done_, stream_), "recording an event");
    const auto began = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t state = cudaEventQuery(done_);
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check(state, "running a step on the GPU");
      const auto waited = std::chrono::steady_clock::now() - began;
      if (watch_) watch_(waited);
      if (waited > kSpin) std::this_thread::sleep_for(kNap);
    }
  }

  void write_floats(std::span<const float> from, void* to) override {
    if (from.empty()) return;
    check(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream_), "writing to the GPU");
    synchronize();
  }

  void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) override {
    require(to.size() >= count * from.columns && first + count <= from.capacity_rows, "read_floats: no room for the rows");
    if (count * from.columns == 0) return;
    const std::size_t stride = row_stride(from.type, from.columns);
    const std::size_t size = element_bytes(from.type);
    const std::byte* start = static_cast<const std::byte*>(from.data) + first * stride * size;
    std::vector<std::byte> rows(count * stride * size);
    check(cudaMemcpyAsync(rows.data(), start, rows.size(), cudaMemcpyDeviceToHost, stream_), "reading from the GPU");
    synchronize();
    for (std::size_t row = 0; row < count; ++row) {
      expand(rows.data() + row * stride * size, from.type, std::span(to).subspan(row * from.columns, from.columns));
    }
  }

  void prepare_steps(const StepLimits& limits) override {
    recorded_.clear();
    tables_.clear();
    records_ = true;
    step_ = std::make_unique<StepBuffers>(limits);
    expert_sums_ = ExpertSums(limits.max_tokens);
    tops_ = DeviceMemory(limits.max_logit_rows * sizeof(Top), "the tops of rows");
    read_tops_ = PinnedMemory(limits.max_logit_rows * sizeof(Top), "the tops of rows");
  }

  StepRows begin_step(const StepBatch& batch) override {
    require(step_ != nullptr, "begin_step before prepare_steps");
    padded_rows_ = 0;
    tables_.begin_step();
    if (options_.graphs && records_) padded_rows_ = RecordedSteps::rows_for(batch, step_->limits());
    step_->upload(batch, padded_rows_, stream_);
    return {step().num_tokens, step().num_logit_rows};
  }

  void run_step(const std::function<void()>& walk) override {
    if (padded_rows_ == 0 || !records_) return walk();
    recorded_.run(padded_rows_, stream_, walk);
  }

  void embed(const Weight* table, std::int32_t first_id, const Matrix& out) override {
    cuda::embed(launch(), static_cast<const CudaWeight*>(table), first_id, step(), rows_of(out));
  }

  void select_logit_rows(const Matrix& from, const Matrix& out) override {
    gather_rows(launch(), rows_of(from), step().logit_rows, step().num_logit_rows, rows_of(out));
  }

  void norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) override {
    cuda::norm(launch(), rows_of(x), num_rows, norm, rows_of(out));
  }

  void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) override {
    cuda::add(launch(), rows_of(x), rows_of(delta), num_rows, bias);
  }

  void add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                const Matrix& out) override {
    cuda::add_norm(launch(), rows_of(x), rows_of(delta), num_rows, bias, norm, rows_of(out));
  }

  void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
              std::size_t out_column) override {
    const auto& own = static_cast<const CudaWeight&>(weight);
    require(in.columns == own.spec().columns && out_column + own.spec().rows <= out.columns, "linear: the matrices do not fit the weight");
    require(in.type == activation_for(own.spec().dtype), "linear: the input is not as activation_for() says");
    require(own.spec().num_roots() * num_rows <= out.capacity_rows, "linear: the output has no room for the roots");
    if (own.plain() != nullptr) return cublas_->linear(launch(), rows_of(in), num_rows, own, bias, rows_of(out), out_column);
    cuda::linear(launch(), rows_of(in), num_rows, own, bias, rows_of(out), out_column);
  }

  void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                         std::size_t layer) override {
    if (table != nullptr && table->by_token) records_ = false;  // a replay would upload nothing
    cuda::rotate_and_append(launch(), rows_of(qkv), step_of(cache, layer), head_map(spec), tables_.rotary(table),
                            static_cast<const CudaKvCache&>(cache), layer);
  }

  void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out,
                 const float* sinks) override {
    const HeadMap heads = head_map(spec);
    const auto& own = static_cast<const CudaKvCache&>(cache);
    const std::size_t bytes = attention_scratch_bytes(heads, step_->limits(), own.spec().block_size, multiprocessors_);
    if (scratch_.size_bytes() < bytes) {
      scratch_ = DeviceMemory(bytes, "attention");
      check(cudaMemsetAsync(scratch_.data(), 0, bytes, stream_), "clearing memory");
    }
    cuda::attention(launch(), rows_of(qkv), step_of(cache, layer), heads, spec.scale, spec.window, own, layer, scratch_.data(),
                    rows_of(out), {.soft_cap = spec.soft_cap, .slopes = tables_.slopes(spec.slopes)}, sinks);
  }

  void gated(const Gating& gating, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) override {
    cuda::gated(launch(), gating, rows_of(gate_up), num_rows, rows_of(out));
  }

  void activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    cuda::activate(launch(), function, rows_of(x), num_rows, rows_of(out));
  }

  void add_positions(const Weight& table, std::size_t offset, const Matrix& x) override {
    cuda::add_positions(launch(), static_cast<const CudaWeight&>(table), offset, step(), rows_of(x));
  }

  void scale(const Matrix& x, std::size_t num_rows, float factor) override { cuda::scale(launch(), rows_of(x), num_rows, factor); }

  void soft_cap(const Matrix& x, std::size_t num_rows, float cap) override { cuda::soft_cap(launch(), rows_of(x), num_rows, cap); }

  void gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) override {
    cuda::gate_rows(launch(), rows_of(x), num_rows, rows_of(gates));
  }

  void norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  const Norm& norm) override {
    cuda::norm_heads(launch(), rows_of(x), num_rows, first_column, num_heads, head_dim, norm);
  }

  void square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                    const Matrix& out) override {
    cuda::square_heads(launch(), rows_of(x), num_rows, first_column, num_heads, head_dim, rows_of(out));
  }

  void norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, const Matrix& squares,
                      std::size_t norm_columns, const float* weight, float eps) override {
    cuda::norm_by_square(launch(), rows_of(x), num_rows, first_column, num_columns, rows_of(squares), norm_columns, weight, eps);
  }

  void route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) override {
    cuda::route(launch(), rows_of(logits), num_rows, routing, rows_of(out));
  }

  void experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::size_t per_token, std::span<const Expert> experts,
               const Gating& gating, std::span<const Leaf> leaves, const Matrix& out) override {
    require(num_rows == step().num_tokens, "experts: the rows are not those of the step");
    expert_sums_.run(launch(), rows_of(h), num_rows, rows_of(routing), step().token_ids, {experts, per_token, gating, leaves},
                     rows_of(out));
  }

  void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    cuda::convert(launch(), rows_of(x), num_rows, rows_of(out));
  }

  void top_of_rows(const Matrix& logits, std::size_t num_rows) override {
    require(num_rows * sizeof(Top) <= tops_.size_bytes(), "top_of_rows: more rows than prepare_steps() was told of");
    cuda::top_of_rows(launch(), rows_of(logits), num_rows, tops_.as<Top>());
    check(cudaMemcpyAsync(read_tops_.data(), tops_.data(), num_rows * sizeof(Top), cudaMemcpyDeviceToHost, stream_), "reading tops");
  }

  void read_tops(std::span<Top> tops) override {
    require(tops.size_bytes() <= read_tops_.size_bytes(), "read_tops: fewer tops were found");
    synchronize();
    std::memcpy(tops.data(), read_tops_.data(), tops.size_bytes());
  }

  void prepare_selection(std::size_t max_rows, std::span<const SegmentRun> runs) override { selection_.prepare(max_rows, runs); }

  void begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* peaks) override {
    selection_.begin(launch(), rows_of(logits), tops_.as<Top>(), selection, rank, num_ranks, peaks);
  }

  void finish_selection(const Matrix& logits, const Selection&, std::size_t num_ranks, const float* peaks) override {
    selection_.finish(launch(), rows_of(logits), num_ranks, peaks);
  }

  std::span<const std::byte> read_selection() override {
    synchronize();
    return selection_.found();
  }

 private:
  static constexpr std::chrono::milliseconds kSpin{2};  // as long as a decode step may take; longer waits leave the core to others
  static constexpr std::chrono::microseconds kNap{50};

  Launch launch() const { return {stream_, multiprocessors_}; }

  const StepView& step() const {
    if (step_ == nullptr) throw std::logic_error("no step has begun");
    return step_->view();
  }

  /// The step as a layer sees it, which goes by one of the block tables.
  StepView step_of(const KvCache& cache, std::size_t layer) const {
    StepView view = step();
    const std::size_t table = cache.spec().place_of(layer).table;
    require(table < step_->limits().num_tables, "a layer goes by a block table that steps do not have");
    view.block_tables += table * step_->limits().max_sequence_blocks;
    return view;
  }

  static void expand(const std::byte* row, Activation type, std::span<float> to) {
    if (type == Activation::kFloat32) {
      std::memcpy(to.data(), row, to.size_bytes());
      return;
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::uint16_t stored = 0;
      std::memcpy(&stored, row + i * sizeof stored, sizeof stored);
      to[i] = type == Activation::kFloat16 ? half_to_float(stored) : bfloat16_to_float(stored);
    }
  }

  CudaOptions options_;
  cpu::ThreadPool host_threads_;
  std::string name_;
  int multiprocessors_ = 1;
  int compute_major_ = 0;
  int compute_minor_ = 0;
  std::unique_ptr<CublasLinear> cublas_;  // --reduction fast
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  Watch watch_;
  std::unique_ptr<StepBuffers> step_;
  std::size_t padded_rows_ = 0;  // of the step that has begun; 0: it is not recorded
  RecordedSteps recorded_;
  DeviceMemory tops_;
  PinnedMemory read_tops_;
  CudaSelection selection_;
  DeviceMemory scratch_;  // of attention
  UploadedTables tables_{*this};
  bool records_ = true;  // false: what the ops do depends on the host in every step
  ExpertSums expert_sums_;
};

}  // namespace

int choose_ordinal(int num_visible, int local_rank, int local_size, bool allow_sharing) {
  if (num_visible < 1) throw std::invalid_argument("no GPU is visible");
  if (num_visible == 1) return 0;  // each task may have been given its own; the communicator finds out if two ranks share one
  if (local_size > num_visible && !allow_sharing) {
    throw std::invalid_argument(std::to_string(local_size) + " ranks on this machine, but only " + std::to_string(num_visible) +
                                " GPUs: use --tensor-parallel-size " + std::to_string(num_visible) + " or --allow-shared-gpu");
  }
  return local_rank % num_visible;
}

std::unique_ptr<CudaDevice> make_cuda_device(const CudaOptions& options) { return std::make_unique<CudaDeviceOnStream>(options); }

}  // namespace lockstep::device::cuda
