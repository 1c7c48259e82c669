#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::device::cpu {

/// Counters by which the threads of a step take the parts of an op as they come. They are handed out while the step is put together, and
/// begin at 0. Keeps its memory from step to step.
class StepCounters {
 public:
  /// So many counters that follow each other. Returns the first one.
  std::size_t take(std::size_t count) {
    const std::size_t first = used_;
    used_ += count;
    if (used_ > capacity_) {  // no thread has counted yet
      capacity_ = std::max<std::size_t>(256, 2 * used_);
      counters_ = std::make_unique<Counter[]>(capacity_);
    }
    for (std::size_t i = first; i < used_; ++i) counters_[i].value.store(0, std::memory_order_relaxed);
    return first;
  }
  std::atomic<std::uint32_t>& operator[](std::size_t i) { return counters_[i].value; }
  /// All of them are free again.
  void reset() { used_ = 0; }

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
  };
  std::unique_ptr<Counter[]> counters_;
  std::size_t used_ = 0, capacity_ = 0;
};

}  // namespace lockstep::device::cpu
