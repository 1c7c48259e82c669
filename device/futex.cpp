#include "device/futex.h"

#include <algorithm>

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::device {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

int pauses_in(std::chrono::nanoseconds time) noexcept {
  using Clock = std::chrono::steady_clock;
  constexpr int kPauses = 256;
  auto shortest = Clock::duration::max();
  for (int round = 0; round < 4; ++round) {  // the shortest: it was not interrupted
    const auto start = Clock::now();
    for (int i = 0; i < kPauses; ++i) spin_pause();
    shortest = std::min(shortest, Clock::now() - start);
  }
  const double each = std::max(1.0, static_cast<double>(std::chrono::nanoseconds(shortest).count()) / kPauses);
  return static_cast<int>(static_cast<double>(time.count()) / each) + 1;
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout) noexcept {
  const timespec time{static_cast<time_t>(timeout.count() / 1'000'000'000), static_cast<long>(timeout.count() % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace lockstep::device
