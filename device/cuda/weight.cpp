#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/linear.h"
#include "device/cuda/weight_packing.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// A stream of its own: loading waits for nothing else.
class CopyStream {
 public:
  CopyStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream to load weights"); }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;
  ~CopyStream() {
    cudaStreamSynchronize(stream_);  // a copy may still read a buffer that goes next
    cudaStreamDestroy(stream_);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying a weight to the GPU");
  }
  void copy_rows(void* to, std::size_t stride, const void* from, std::size_t bytes_of_row, std::size_t rows) {
    check(cudaMemcpy2DAsync(to, stride, from, bytes_of_row, bytes_of_row, rows, cudaMemcpyHostToDevice, stream_),
          "copying a weight to the GPU");
  }
  void synchronize() { check(cudaStreamSynchronize(stream_), "copying a weight to the GPU"); }

 private:
  cudaStream_t stream_ = nullptr;
};

bool has_kernels(DType dtype) {
  return !info(dtype).block_quantised() || dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4_1;
}

/// Rows of any type as bf16: what the kernels would make of them (docs/numerics.md, N8), at 2 bytes an element of the GPU's memory.
ReadRows bfloat16_rows(const WeightSpec& spec, const ReadRows& read) {
  return [&spec, &read](std::size_t first, std::size_t count, std::span<std::byte> to) {
    const DTypeInfo& type = info(spec.dtype);
    const std::size_t bytes = spec.stored_row_bytes();
    std::vector<std::byte> stored(count * bytes);
    std::vector<float> whole(bytes / type.block_bytes * type.block_size);
    read(first, count, stored);
    for (std::size_t row = 0; row < count; ++row) {
      dequantise(spec.dtype, std::span(stored).subspan(row * bytes, bytes), whole);
      for (std::size_t k = 0; k < spec.columns; ++k) {
        const std::uint16_t value = float_to_bfloat16(whole[spec.first_column + k]);
        std::memcpy(&to[(row * spec.columns + k) * sizeof value], &value, sizeof value);
      }
    }
  };
}

}  // namespace

Activation activation_for(DType weight) {
  switch (weight) {
    case DType::kF32: return Activation::kFloat32;
    case DType::kF16: return Activation::kFloat16;
    default: return Activation::kBFloat16;
  }
}

std::unique_ptr<CudaWeight> load_cuda_weight(WeightSpec spec, const ReadRows& read, PlainRows plain_rows, cpu::ThreadPool* threads) {
  if (!has_kernels(spec.dtype)) {
    WeightSpec expanded = spec;
    expanded.dtype = DType::kBF16;
    expanded.first_column = 0;
    return load_cuda_weight(std::move(expanded), bfloat16_rows(spec, read), plain_rows, threads);
  }
  cpu::ThreadPool this_thread(1);
  cpu::ThreadPool& pool = threads != nullptr ? *threads : this_thread;
  auto weight = std::make_unique<CudaWeight>();
  weight->plan_ = plan_slices(spec);
  const SlicePlan& plan = weight->plan_;
  const std::size_t panels = (spec.rows + kPanelRows - 1) / kPanelRows, panel_size = panel_bytes(spec, plan);
  const std::size_t stored_row = row_bytes(spec.dtype, spec.columns), slices_size = plan.slices.size() * sizeof(Slice);
  weight->memory_ = DeviceMemory(panels * panel_size, "weight '" + spec.name + "'");
  const bool keeps = plain_rows == PlainRows::kKeep && (spec.dtype == DType::kF16 || spec.dtype == DType::kBF16);
  const std::size_t plain_stride = row_stride(activation_for(spec.dtype), spec.columns) * element_bytes(activation_for(spec.dtype));
  if (keeps) weight->plain_ = DeviceMemory(spec.rows * plain_stride, "the plain rows of weight '" + spec.name + "'");
  weight->slices_ = DeviceMemory(slices_size, "the leaves of weight '" + spec.name + "'");

  const std::size_t panels_at_once = std::clamp(kPieceBytes / panel_size, std::size_t{1}, std::max(panels, std::size_t{1}));
  const PinnedMemory stored(std::min(panels_at_once * kPanelRows, spec.rows) * stored_row, "loading weights");
  const PinnedMemory packed(panels > 0 ? panels_at_once * panel_size : 0, "loading weights");
  CopyStream stream;
  stream.copy(weight->slices_.data(), plan.slices.data(), slices_size);
  for (std::size_t first = 0; first < panels; first += panels_at_once) {
    const std::size_t count = std::min(panels_at_once, panels - first);
    const std::size_t rows = std::min(count * kPanelRows, spec.rows - first * kPanelRows);
    const std::span<std::byte> piece(stored.as<std::byte>(), rows * stored_row);
    stream.synchronize();  // the copies of the last piece read `stored` and `packed`
    pool.run([&](std::size_t thread) {
      for (std::size_t i = thread; i < count; i += pool.size()) {
        const std::size_t from = i * kPanelRows, of_panel = std::min<std::size_t>(kPanelRows, rows - from);
        const std::span<std::byte> panel_rows = piece.subspan(from * stored_row, of_panel * stored_row);
        read(first * kPanelRows + from, of_panel, panel_rows);
        pack_panel(spec, plan, panel_rows, {packed.as<std::byte>() + i * panel_size, panel_size});
      }
    });
    if (keeps)
      stream.copy_rows(weight->plain_.as<std::byte>() + first * kPanelRows * plain_stride, plain_stride, piece.data(), stored_row, rows);
    stream.copy(weight->memory_.as<std::byte>() + first * panel_size, packed.data(), count * panel_size);
  }
  stream.synchronize();
  weight->spec_ = std::move(spec);
  return weight;
}

}  // namespace lockstep::device::cuda
