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

/// Sleeps while `word` holds `expected`, at most `timeout`; may wake early. Works between processes that share the memory.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

/// How a thread waits before it sleeps. A sleep and its wake cost 5 us on a bare machine but 40 to 60 on a virtual one, several times what
/// the threads of a step are apart.
enum class Spin {
  kPatient,  // it is to keep its processor: who sleeps invites another process
  kLong,     // it has a processor of its own: nobody else of the job could use it
  kShort,  // a peer may need the processor to get where this one waits for it. To yield instead is worse: next to a busy process it costs a
           // slice of time each time
};
constexpr Spin spin_of(bool own_processors) { return own_processors ? Spin::kLong : Spin::kShort; }
constexpr std::chrono::microseconds longest_spin(Spin spin) {
  constexpr int kLongest[] = {10'000, 500, 4};
  return std::chrono::microseconds(kLongest[static_cast<int>(spin)]);
}

/// Looks until `ready()` holds, for longest_spin() at most; measured in time because a pause takes 10 ns on one processor and 50 on
/// another. Returns whether it holds. `began`, if given, is set to about the time of the call, unless the first looks are enough.
template <class Ready>
bool spin_until(const Ready& ready, Spin spin, std::chrono::steady_clock::time_point* began = nullptr) noexcept {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 64;  // between two looks at the clock
  for (Clock::time_point end{};;) {
    for (int look = 0; look < kLooks; ++look) {
      if (ready()) return true;
      spin_pause();
    }
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) {
      end = now + longest_spin(spin);
      if (began != nullptr) *began = now;
    } else if (now >= end) {
      return ready();
    }
  }
}

}  // namespace lockstep::device
