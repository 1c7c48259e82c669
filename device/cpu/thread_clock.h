#pragma once

#include <chrono>
#include <ctime>

namespace lockstep::device::cpu {

inline std::chrono::nanoseconds now() noexcept { return std::chrono::steady_clock::now().time_since_epoch(); }

/// Of the calling thread: what it had of a processor so far.
inline std::chrono::nanoseconds processor_time() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace lockstep::device::cpu
