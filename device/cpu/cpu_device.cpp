#include "device/cpu/cpu_device.h"

#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>

#include "device/cpu/cpu_step_device.h"

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

}  // namespace

std::string CpuDevice::description() const {
  return "cpu " + std::string(isa_name(kernels_.isa)) + ", " + std::to_string(pool_.size()) + (pool_.size() == 1 ? " thread" : " threads");
}

std::unique_ptr<Buffer> CpuDevice::allocate(std::size_t bytes) {
  if (bytes < (std::size_t{1} << 20)) return std::make_unique<SmallBuffer>(bytes);
  return std::make_unique<CpuBuffer>(bytes);
}

std::size_t CpuDevice::matrix_bytes(Activation type, std::size_t rows, std::size_t columns) const {
  if (type == Activation::kFloat32) return rows * columns * sizeof(float);
  require(type == Activation::kInt8Blocks, "the CPU device has no 16-bit activations");
  require(columns % kBlock == 0, "a kInt8Blocks matrix needs a multiple of 32 columns");
  return int8_matrix_bytes(rows, columns);
}

std::unique_ptr<Weight> CpuDevice::load_weight(WeightSpec spec, const ReadRows& read) {
  std::vector<std::size_t> part_rows = spec.part_rows;
  if (pool_.size() == 1 || part_rows.empty()) part_rows = {spec.rows};
  require(std::accumulate(part_rows.begin(), part_rows.end(), std::size_t{0}) == spec.rows, "load_weight: the parts are not all rows");
  std::vector<std::unique_ptr<CpuWeight>> packed;
  std::size_t begin = 0;
  for (const std::size_t rows : part_rows) {
    WeightSpec own = spec;
    own.rows = rows;
    const ReadRows read_part = [&](std::size_t first, std::size_t count, std::span<std::byte> to) { read(begin + first, count, to); };
    packed.push_back(load_cpu_weight(std::move(own), kernels_.q8_offset, read_part, pool_, arenas_));
    begin += rows;
  }
  return std::make_unique<LinearWeight>(std::move(spec), std::move(packed));
}

std::unique_ptr<KvCache> CpuDevice::allocate_kv_cache(const KvCacheSpec& spec) { return std::make_unique<CpuKvCache>(spec); }

void CpuDevice::write_floats(std::span<const float> from, void* to) {
  flush();
  copies_.invalidate_all();
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

void CpuDevice::read_floats(const Matrix& from, std::size_t first, std::size_t count, std::span<float> to) {
  flush();
  require(to.size() >= count * from.columns, "read_floats: no room for the rows");
  if (from.type == Activation::kFloat32) {
    if (count * from.columns > 0)
      std::memcpy(to.data(), floats_of(from, first + count) + first * from.columns, count * from.columns * sizeof(float));
    return;
  }
  const Int8View view = int8_of(from, first + count);
  for (std::size_t row = first; row < first + count; ++row)
    expand_quants(view, row, from.columns, to.data() + (row - first) * from.columns);
}

StepRows CpuDevice::begin_step(const StepBatch& batch) {
  flush();
  step_ = &batch;
  attention_.forget_plan();
  attention_.end_calls();
  counters_.reset();
  copies_.invalidate_all();
  products_ = {};
  return {batch.num_tokens(), batch.logit_rows.size()};
}

void CpuDevice::run_step(const std::function<void()>& walk) {
  const Recording recording(*this);
  walk();
  if (rotation_.rows != nullptr) throw std::logic_error("rotate_and_append: no attention followed");
  flush();
}

void CpuDevice::begin_host_access(const Matrix& matrix) {
  flush();
  copies_.set_valid(matrix, false);
}

void CpuDevice::read_tops(std::span<Top> tops) {
  flush();
  require(tops.size() * pool_.size() <= tops_.size(), "read_tops: fewer tops were found");
  for (std::size_t row = 0; row < tops.size(); ++row) tops[row] = top_of_row(row);
}

Top CpuDevice::top_of_row(std::size_t row) const {
  Top best;
  for (std::size_t thread = 0; thread < pool_.size(); ++thread) best = higher(best, tops_[row * pool_.size() + thread]);
  return best;
}

void CpuDevice::begin_selection(const Matrix& logits, const Selection& selection, std::size_t rank, std::size_t num_ranks, float* peaks) {
  flush();
  const FloatMode mode;
  const std::size_t rows = tops_.size() / pool_.size();
  for (const SelectionRow& row : selection.rows)
    require(logits.columns == 0 || row.row < rows, "begin_selection: a row of which there is no top");
  maxima_of_rows_.resize(rows);
  for (std::size_t row = 0; row < rows; ++row) maxima_of_rows_[row] = top_of_row(row).logit;
  selection_.begin(floats_of(logits, 0), logits.columns, maxima_of_rows_, selection, rank, num_ranks, peaks);
}

void CpuDevice::finish_selection(const Matrix& logits, const Selection& selection, std::size_t num_ranks, const float* peaks) {
  const FloatMode mode;
  selection_.finish(floats_of(logits, 0), logits.columns, selection, num_ranks, peaks);
}

const StepBatch& CpuDevice::step() const {
  if (step_ == nullptr) throw std::logic_error("no step has begun");
  return *step_;
}

void CpuDevice::flush() {
  if (program_.empty()) return;
  const FloatMode mode;
  crew_.note(program_.run(pool_, walk_.value_or(crew_.next())));
}

void CpuDevice::reserve_scratch(std::size_t bytes) {
  for (auto& scratch : scratch_) {
    if (scratch.size() < bytes) scratch.resize(bytes);
  }
}

}  // namespace cpu

Activation cpu_activation_for(DType weight) { return info(weight).block_quantised() ? Activation::kInt8Blocks : Activation::kFloat32; }

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  if (options.num_threads == 0) throw std::invalid_argument("a CPU device needs at least one thread");
  isa_from_name(isa_name(options.isa));
  return std::make_unique<cpu::CpuDevice>(options);
}

}  // namespace lockstep::device
