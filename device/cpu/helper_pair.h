#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "device/cpu/crew.h"
#include "device/cpu/epoch_flag.h"

namespace lockstep::device::cpu {

/// An even thread of a pool and its helper, the thread after it, in a walk: who does the helper's share. The helper leaves at a barrier
/// where its turn (crew.h) is nearly over; from there the even thread does both shares, until the helper says that it is back and the even
/// thread calls it, at a barrier again. The two agree without a lock and without waiting for each other. All but the atomics belong to
/// whoever may touch the helper's share.
class HelperPair {
 public:
  /// What the helper begins with; before the threads are there.
  void set_turn(const Turn& turn) { turn_ = turn; }

  // The even thread's.

  /// Begins a walk: calls the helper, or does its share as well.
  void begin(Walk walk) noexcept;
  /// Behind a barrier of a walk of helpers that come and go, which orders what the two read and write here. Next is the entry at `place`.
  void look_for_helper(std::uint32_t epoch, std::size_t place) noexcept;
  /// The even thread does the helper's share.
  bool alone() const noexcept { return alone_; }
  /// The helper begins at `place`, or finds that the pool ends.
  void call(std::size_t place) noexcept;
  /// Of the latest walk: see WalkReport.
  std::size_t parts() const noexcept { return parts_; }
  std::size_t missed() const noexcept { return missed_; }

  // The helper's.

  /// In its thread, before all else.
  void enter() noexcept;
  /// Waits for the call of that number, the first is 1, and returns where to begin.
  std::size_t wait_for_call(std::uint32_t number, Spin spin) noexcept;
  /// At a barrier of a walk of helpers that come and go, before the helper arrives there: whether it goes no further.
  /// @param slept it did so on its way; taken back where this explains that it had no processor.
  bool leaves_at(std::uint32_t epoch, bool& slept) noexcept;
  /// At the end of its part of a walk: whether it left.
  bool has_left() const noexcept { return has_left_; }
  /// It left: gives its processor to whoever wants it.
  void give_way() noexcept;

 private:
  using Nanoseconds = std::chrono::nanoseconds;

  bool helper_is_present() noexcept;
  bool look_for_call(std::uint32_t number, Spin spin) noexcept;
  void come_back(Nanoseconds from, Nanoseconds to) noexcept;
  Nanoseconds check_presence(Nanoseconds at) noexcept;

  EpochFlag calls_;
  std::size_t place_ = 0;               // where the helper is to begin
  std::atomic<std::uint64_t> left_{0};  // kLeft + the epoch of the barrier at which it leaves: it may be there before the even thread is
                                        // behind the one before; 0: nowhere
  std::atomic<bool> present_{true};     // false: the helper is asked whether it has its processor
  std::atomic<bool> rests_{false};      // it is to sleep, not to look for a call
  alignas(128) bool alone_ = false;
  std::size_t parts_ = 0, missed_ = 0;
  alignas(128) Turn turn_;  // the helper's, as all that follows
  bool has_left_ = false;
  Nanoseconds looked_{}, checked_{}, used_{};  // the latest barrier; the latest check, and the processor time used by then
};

}  // namespace lockstep::device::cpu
