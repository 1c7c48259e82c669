#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "comm/cuda/cuda_communicator.h"
#include "comm/forwarding_communicator.h"
#include "comm/threads.h"
#include "device/cuda/error.h"
#include "device/cuda/memory.h"
#include "simt/simt.h"
#include "tests/comm/rank_runner.h"

/// Threads as ranks with an emulated GPU each.
namespace lockstep::comm {

/// The thread sanitizer makes kernels a hundred times slower, and has room for some thousand threads: fewer blocks, then.
#if defined(__SANITIZE_THREAD__)
constexpr bool is_slow = true;
#else
constexpr bool is_slow = false;
#endif

/// Every test begins with this.
inline void reset_emulator() {
  simt::reset();
  if (is_slow) simt::config().multiprocessors = 2;
}

/// A stream of the current device, destroyed with the object.
class TestStream {
 public:
  TestStream() { device::cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// What a rank of a test has.
struct GpuRank {
  Communicator& host;
  CudaCommunicator& communicator;
  cudaStream_t stream;

  int rank() const { return communicator.rank(); }

  /// Waits for the stream as a device does: it polls, and asks the communicator.
  void finish() const {
    const auto start = std::chrono::steady_clock::now();
    cudaError_t code = cudaSuccess;
    while ((code = cudaStreamQuery(stream)) == cudaErrorNotReady) communicator.waiting(std::chrono::steady_clock::now() - start);
    device::cuda::check(code, "waiting for the stream");
    communicator.check();
  }
  void upload(const std::vector<float>& from, float* to) const {
    if (from.empty()) return;
    device::cuda::check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice, stream), "uploading");
    finish();
  }
  std::vector<float> download(const float* from, std::size_t count) const {
    std::vector<float> values(count);
    if (count == 0) return values;
    device::cuda::check(cudaMemcpyAsync(values.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost, stream), "downloading");
    finish();
    return values;
  }
};

using GpuBody = std::function<void(GpuRank&)>;
using OptionsOf = std::function<CudaCommunicatorOptions(int rank)>;

/// Runs `body` on every rank, each with a device of its own; what each threw, empty if nothing.
inline Outcomes run_gpus(
    int size, const OptionsOf& options_of, const CommunicatorOptions& host_options, const GpuBody& body,
    const std::function<int(int)>& device_of = [](int rank) { return rank; }) {
  auto hosts = make_thread_communicators(size, host_options);
  Outcomes outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Communicator>& host = hosts[static_cast<std::size_t>(rank)];
      try {
        device::cuda::check(cudaSetDevice(device_of(rank)), "choosing the device");
        const TestStream stream;
        CudaCommunicatorOptions options = options_of(rank);
        options.stream = stream.get();
        const auto communicator = make_cuda_communicator(*host, options);
        GpuRank self{*host, *communicator, stream.get()};
        body(self);
      } catch (const std::exception& error) {
        outcomes[static_cast<std::size_t>(rank)] = "rank " + std::to_string(rank) + ": " + error.what();
        if (!simt::last_error().empty()) outcomes[static_cast<std::size_t>(rank)] += "\nthe emulator says: " + simt::last_error();
        host->abort(error.what());
      }
      host.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Passes host values through the memory of the GPU, so that the suite for all communicators runs on this one.
class ThroughTheGpu final : public ForwardingCommunicator {
 public:
  explicit ThroughTheGpu(const GpuRank& gpu) : ForwardingCommunicator(gpu.communicator), gpu_(gpu) {}
  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override {
    const std::size_t mine = std::max<std::size_t>(1, tree.roots_per_rank.at(static_cast<std::size_t>(rank())));
    const device::cuda::DeviceMemory memory(mine * count * sizeof(float), "the test");
    gpu_.upload({values, values + mine * count}, memory.as<float>());
    next().all_reduce(tree, memory.as<float>(), count);
    const std::vector<float> sum = gpu_.download(memory.as<float>(), count);
    std::copy(sum.begin(), sum.end(), values);
  }

 private:
  GpuRank gpu_;
};

/// A table of one transport, in a file that goes with the object.
class TableFile {
 public:
  explicit TableFile(const std::string& text) {
    path_ = std::filesystem::temp_directory_path() /
            ("lockstep-table-" + std::to_string(getpid()) + "-" + std::to_string(reinterpret_cast<std::uintptr_t>(this)));
    std::ofstream(path_) << text;
  }
  ~TableFile() { std::filesystem::remove(path_); }
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Options with which small messages take every path: small slots, one transport.
inline CudaCommunicatorOptions gpu_options(const std::filesystem::path& table) {
  CudaCommunicatorOptions options;
  options.num_multiprocessors = 8;
  options.max_values = 1 << 15;
  options.max_roots = 16;
  options.slot_bytes = 4096;
  options.deadline = std::chrono::seconds(30);
  options.tuning = table;
  return options;
}

}  // namespace lockstep::comm
