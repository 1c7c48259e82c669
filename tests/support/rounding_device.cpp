#include "tests/support/rounding_device.h"

#include "device/cpu/cpu_device.h"

namespace lockstep::test {
namespace {

using namespace device;

class RoundingDevice final : public Device {
 public:
  RoundingDevice(Activation type, Isa isa) : type_(type), inside_(make_cpu_device({.num_threads = 1, .isa = isa})) {}

  std::string description() const override { return "rounding " + inside_->description(); }
  std::string numerics() const override { return "rounding"; }
  Activation activation_for(DType) const override { return type_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override { return inside_->allocate(bytes); }
  std::size_t matrix_bytes(Activation, std::size_t rows, std::size_t columns) const override { return rows * columns * sizeof(float); }
  std::unique_ptr<Weight> load_weight(WeightSpec spec, const ReadRows& read) override {
    return inside_->load_weight(std::move(spec), read);
  }
  std::unique_ptr<KvCache> allocate_kv_cache(const KvCacheSpec& spec) override { return inside_->allocate_kv_cache(spec); }
  void synchronize() override {}
  void write_floats(std::span<const float> from, void* to) override { inside_->write_floats(from, to); }
  void read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) override {
    inside_->read_floats(plain(from), first, count, to);
  }
  void prepare_steps(const StepLimits& limits) override { inside_->prepare_steps(limits); }
  StepRows begin_step(const StepBatch& batch) override {
    tokens_ = batch.num_tokens();
    return inside_->begin_step(batch);
  }
  void embed(const Weight* table, std::int32_t first_id, const Matrix& out) override { inside_->embed(table, first_id, out); }
  void select_logit_rows(const Matrix& from, const Matrix& out) override { inside_->select_logit_rows(from, out); }
  void norm(const Matrix& x, std::size_t num_rows, const Norm& norm, const Matrix& out) override {
    inside_->norm(x, num_rows, norm, plain(out));
    round(out, num_rows);
  }
  void add(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias) override {
    inside_->add(x, delta, num_rows, bias);
  }
  void add_norm(const Matrix& x, const Matrix& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                const Matrix& out) override {
    inside_->add_norm(x, delta, num_rows, bias, norm, plain(out));
    round(out, num_rows);
  }
  void sum_add_norm(const Matrix& x, const SumOfParts& delta, std::size_t num_rows, const float* bias, const Norm& norm,
                    const Matrix& out) override {
    inside_->sum_add_norm(x, delta, num_rows, bias, norm, plain(out));
    round(out, num_rows);
  }
  void linear(const Matrix& in, std::size_t num_rows, const Weight& weight, const float* bias, const Matrix& out,
              std::size_t out_column) override {
    inside_->linear(plain(in), num_rows, weight, bias, out, out_column);
  }
  void rotate_and_append(const Matrix& qkv, const AttentionSpec& spec, const RotaryTable* table, KvCache& cache,
                         std::size_t layer) override {
    inside_->rotate_and_append(qkv, spec, table, cache, layer);
  }
  void attention(const Matrix& qkv, const AttentionSpec& spec, KvCache& cache, std::size_t layer, const Matrix& out,
                 const float* sinks) override {
    inside_->attention(qkv, spec, cache, layer, plain(out), sinks);
    round(out, tokens_);
  }
  void gated(const Gating& gating, const Matrix& gate_up, std::size_t num_rows, const Matrix& out) override {
    inside_->gated(gating, gate_up, num_rows, plain(out));
    round(out, num_rows);
  }
  void activate(Nonlinearity function, const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    inside_->activate(function, x, num_rows, plain(out));
    round(out, num_rows);
  }
  void add_positions(const Weight& table, std::size_t offset, const Matrix& x) override { inside_->add_positions(table, offset, x); }
  void scale(const Matrix& x, std::size_t num_rows, float factor) override { inside_->scale(x, num_rows, factor); }
  void soft_cap(const Matrix& x, std::size_t num_rows, float cap) override { inside_->soft_cap(x, num_rows, cap); }
  void gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) override { inside_->gate_rows(x, num_rows, gates); }
  void norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  const Norm& norm) override {
    inside_->norm_heads(x, num_rows, first_column, num_heads, head_dim, norm);
  }
  void square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                    const Matrix& out) override {
    inside_->square_heads(x, num_rows, first_column, num_heads, head_dim, out);
  }
  void norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, const Matrix& squares,
                      std::size_t norm_columns, const float* weight, float eps) override {
    inside_->norm_by_square(x, num_rows, first_column, num_columns, squares, norm_columns, weight, eps);
  }
  void route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) override {
    inside_->route(logits, num_rows, routing, out);
  }
  void experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::size_t per_token, std::span<const Expert> experts,
               const Gating& gating, std::span<const Leaf> leaves, const Matrix& out) override {
    inside_->experts(plain(h), num_rows, routing, per_token, experts, gating, leaves, out);
  }
  void convert(const Matrix& x, std::size_t num_rows, const Matrix& out) override {
    const float* from = static_cast<const float*>(x.data);
    std::copy_n(from, num_rows * x.columns, static_cast<float*>(out.data));
    round(out, num_rows);
  }
  void top_of_rows(const Matrix& logits, std::size_t num_rows) override { inside_->top_of_rows(logits, num_rows); }
  void read_tops(std::span<Top> tops) override { inside_->read_tops(tops); }
  void prepare_selection(std::size_t max_rows, std::span<const SegmentRun> runs) override { inside_->prepare_selection(max_rows, runs); }
  void begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* peaks) override {
    inside_->begin_selection(logits, selection, rank, num_ranks, peaks);
  }
  void finish_selection(const Matrix& logits, const Selection& selection, std::size_t num_ranks, const float* peaks) override {
    inside_->finish_selection(logits, selection, num_ranks, peaks);
  }
  std::span<const std::byte> read_selection() override { return inside_->read_selection(); }

 private:
  static Matrix plain(Matrix matrix) {
    matrix.type = Activation::kFloat32;
    return matrix;
  }

  void round(const Matrix& matrix, std::size_t rows) const {
    float* values = static_cast<float*>(matrix.data);
    for (std::size_t i = 0; i < rows * matrix.columns; ++i) {
      values[i] = type_ == Activation::kFloat16 ? half_to_float(float_to_half(values[i])) : bfloat16_to_float(float_to_bfloat16(values[i]));
    }
  }

  Activation type_;
  std::unique_ptr<Device> inside_;
  std::size_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<device::Device> make_rounding_device(device::Activation type, device::Isa isa) {
  return std::make_unique<RoundingDevice>(type, isa);
}

}  // namespace lockstep::test
