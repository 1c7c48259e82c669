#include "device/cpu/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "device/cpu/kernels.h"
#include "device/cpu/memory.h"
#include "device/cpu/thread_pool.h"

namespace lockstep::device {

double measure_read_bandwidth(std::size_t num_threads, std::size_t bytes, double seconds, const std::vector<int>& processors) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<int>> places(std::max<std::size_t>(1, num_threads), processors);
  places.front().clear();
  cpu::ThreadPool pool(places.size(), places);
  const cpu::Kernels& kernels = cpu::kernels_for(supported_isas().back());
  const std::size_t share = std::max<std::size_t>(bytes / pool.size() / 4096, 1) * 4096;
  const cpu::HugeMemory memory(share * pool.size());
  std::atomic<std::uint64_t> sink{0};  // what was read must go somewhere
  pool.run([&](std::size_t thread) { std::memset(memory.data() + thread * share, 1, share); });
  double best = 0;
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (int run = 0; run < 3 || Clock::now() < end; ++run) {
    const Clock::time_point start = Clock::now();
    pool.run([&](std::size_t thread) { sink ^= kernels.read_bytes(memory.data() + thread * share, share); });
    best = std::max(best, static_cast<double>(share * pool.size()) / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

PeakRates measure_peak_rates(Isa isa) {
  using Clock = std::chrono::steady_clock;
  const cpu::Kernels& kernels = cpu::kernels_for(isa);
  const std::size_t rounds = std::size_t{1} << (isa == Isa::kPortable ? 12 : 16);
  volatile double sink = 0;  // the results must go somewhere
  const auto best_rate = [&](double operations, const auto& run) {
    double best = 0;
    for (int i = 0; i < 100; ++i) {
      const Clock::time_point start = Clock::now();
      sink = static_cast<double>(run(rounds));
      best = std::max(best, operations * static_cast<double>(rounds) / std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
  };
  const double operations = 2.0 * static_cast<double>(cpu::kProbeOperations);
  return {best_rate(operations, kernels.multiply_floats), best_rate(4 * operations, kernels.multiply_bytes)};
}

}  // namespace lockstep::device
