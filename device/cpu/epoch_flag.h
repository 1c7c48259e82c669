#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "device/futex.h"

namespace lockstep::device::cpu {

/// A count that one thread moves on and others wait for, alone in the cache lines that a core fetches together. Counts may wrap around.
class alignas(128) EpochFlag {
 public:
  /// As its owner knows it.
  std::uint32_t epoch() const noexcept { return epoch_.load(std::memory_order_relaxed); }
  /// What its owner wrote before is visible then.
  bool has_reached(std::uint32_t epoch) const noexcept { return !behind(epoch_.load(std::memory_order_acquire), epoch); }

  void publish(std::uint32_t epoch) noexcept {
    // Either this thread sees the sleeper, or the sleeper, which counts itself first, sees the new epoch.
    epoch_.store(epoch, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(epoch_);
  }
  /// Returns the new epoch.
  std::uint32_t advance() noexcept {
    const std::uint32_t next = epoch() + 1;
    publish(next);
    return next;
  }

  /// Looks for a while, then sleeps until the epoch is reached. Adds to `waited`, unless the first looks are enough. Returns whether it
  /// slept.
  bool wait(std::uint32_t epoch, Spin spin, std::chrono::nanoseconds& waited) noexcept {
    using Clock = std::chrono::steady_clock;
    Clock::time_point began{};
    const bool sleeps = !spin_until([&] { return has_reached(epoch); }, spin, &began);
    if (sleeps) {
      do sleep(epoch);
      while (!has_reached(epoch));
    }
    if (began != Clock::time_point{}) waited += Clock::now() - began;
    return sleeps;
  }
  /// Sleeps, unless the epoch is reached, until someone wakes it.
  void sleep(std::uint32_t epoch) noexcept {
    constexpr std::chrono::seconds kLongest{3600};
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = epoch_.load(std::memory_order_seq_cst);
    if (behind(seen, epoch)) futex_wait(epoch_, seen, kLongest);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void wake_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_relaxed) != 0) futex_wake_all(epoch_);
  }

 private:
  static bool behind(std::uint32_t seen, std::uint32_t epoch) noexcept { return static_cast<std::int32_t>(seen - epoch) < 0; }

  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace lockstep::device::cpu
