#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/cublas_linear.h"
#include "device/cuda/kernels/probe.cuh"
#include "device/cuda/memory.h"
#include "device/cuda/probe.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kLeastRead = std::size_t{4} << 20, kMostRead = std::size_t{1} << 30;
constexpr std::size_t kLeastProduct = 256, kMostProduct = 8192;
constexpr double kLongPass = 20e-3;  // seconds: then a pass is large enough
constexpr double kBudget = 0.25;     // seconds for the passes that count
constexpr int kMostPasses = 50;

/// Two moments in a stream.
class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&from_), "creating an event");
    check(cudaEventCreate(&to_), "creating an event");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    if (from_ != nullptr) cudaEventDestroy(from_);
    if (to_ != nullptr) cudaEventDestroy(to_);
  }

  /// Seconds that what `enqueue` puts into the device's stream takes.
  double time(CudaDevice& device, const std::function<void()>& enqueue) {
    check(cudaEventRecord(from_, device.stream()), "recording an event");
    enqueue();
    check(cudaEventRecord(to_, device.stream()), "recording an event");
    device.synchronize();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, from_, to_), "asking for the time between events");
    return std::max(1e-9, 1e-3 * static_cast<double>(milliseconds));
  }

  /// Without what happens at first use.
  double warm_time(CudaDevice& device, const std::function<void()>& enqueue) {
    time(device, enqueue);
    return time(device, enqueue);
  }

  /// The fastest of several.
  double best(CudaDevice& device, const std::function<void()>& enqueue) {
    double least = warm_time(device, enqueue), total = 0.0;
    for (int pass = 0; pass < kMostPasses && (pass == 0 || total < kBudget); ++pass) {
      const double seconds = time(device, enqueue);
      least = std::min(least, seconds);
      total += seconds;
    }
    return least;
  }

 private:
  cudaEvent_t from_ = nullptr;
  cudaEvent_t to_ = nullptr;
};

/// A square bf16 product: weight, activations, result. The numbers are spread as those of a model: power, and so the clock, depends on it.
struct Square {
  std::unique_ptr<CudaWeight> weight;
  DeviceMemory in, out;

  /// The weight is there twice: packed, and as it is.
  static std::size_t bytes(std::size_t n) { return n * n * (2 + 2 + 2 + 4); }

  explicit Square(std::size_t n) : in(n * n * 2, "a speed probe"), out(n * n * 4, "a speed probe") {
    std::vector<std::uint16_t> row(n);
    for (std::size_t i = 0; i < n; ++i) row[i] = float_to_bfloat16(static_cast<float>((i * 7919 + i / 7) % 257) / 128.0f - 1.0f);
    const auto read = [&](std::size_t, std::size_t count, std::span<std::byte> to) {
      for (std::size_t r = 0; r < count; ++r) std::memcpy(to.data() + r * n * 2, row.data(), n * 2);
    };
    weight = load_cuda_weight({"speed probe", DType::kBF16, n, n, {{static_cast<std::uint32_t>(n), 0, true}}}, read, PlainRows::kKeep);
    for (std::size_t r = 0; r < n; ++r)
      check(cudaMemcpy(in.as<std::uint16_t>() + r * n, row.data(), n * 2, cudaMemcpyHostToDevice), "writing to the GPU");
    check(cudaDeviceSynchronize(), "writing to the GPU");
  }
};

}  // namespace

double measure_read_bandwidth(CudaDevice& device) {
  const unsigned blocks = 4 * static_cast<unsigned>(device.num_multiprocessors());
  const std::size_t quantum = std::size_t{16} * 4 * blocks * kProbeThreads;
  const std::size_t most = std::max(quantum, std::min(kMostRead, device.free_bytes() / 2) / quantum * quantum);
  Stopwatch watch;
  for (std::size_t bytes = std::max(quantum, kLeastRead / quantum * quantum);; bytes = std::min(most, 8 * bytes)) {
    const DeviceMemory memory(bytes, "a bandwidth probe"), sink(sizeof(unsigned), "a bandwidth probe");
    check(cudaMemsetAsync(memory.data(), 0, bytes, device.stream()), "clearing memory");
    const auto read = [&] {
      check(launch(read_all, dim3(blocks), dim3(kProbeThreads), 0, device.stream(), memory.as<uint4>(), bytes / 16, sink.as<unsigned>()),
            "launching read_all");
    };
    if (bytes < most && watch.warm_time(device, read) < kLongPass) continue;
    return static_cast<double>(bytes) / watch.best(device, read);
  }
}

double measure_tensor_flops(CudaDevice& device) {
  Stopwatch watch;
  CublasLinear products;
  for (std::size_t n = kLeastProduct;; n *= 2) {
    const Square square(n);
    const auto multiply = [&] {
      products.linear({device.stream(), device.num_multiprocessors()}, {square.in.data(), n, n, Activation::kBFloat16}, n, *square.weight,
                      nullptr, {square.out.data(), n, n, Activation::kFloat32}, 0);
    };
    const bool larger_fits = Square::bytes(2 * n) <= device.free_bytes() / 2;
    if (n < kMostProduct && larger_fits && watch.warm_time(device, multiply) < kLongPass) continue;
    return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / watch.best(device, multiply);
  }
}

}  // namespace lockstep::device::cuda
