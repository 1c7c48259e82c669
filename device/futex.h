#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::device {

/// Tells the core that this is a spin loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How many spin_pause() take about so long here: 10 to 50 ns each, as the processor is made. Measured, in some ten microseconds.
int pauses_in(std::chrono::nanoseconds time) noexcept;

/// Sleeps while `word` holds `expected`, at most `timeout`; may wake early. Works between processes that share the memory.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace lockstep::device
