#include "device/cpu/helper_pair.h"

#include <utility>

#include <sched.h>

#include "device/cpu/thread_clock.h"

namespace lockstep::device::cpu {
namespace {

constexpr int kLooksForAnswer = 64;
constexpr std::uint64_t kLeft = std::uint64_t{1} << 32;
// A helper looks at what processor time it got only where it was longer on its way from barrier to barrier than this, and has lost its
// processor if it lacks so much.
constexpr std::chrono::microseconds kLongPart{300}, kTakenOff{200};

}  // namespace

void HelperPair::begin(Walk walk) noexcept {
  parts_ = 1;
  missed_ = 0;
  alone_ = true;
  const bool rests = walk == Walk::kHalf;
  if (rests_.load(std::memory_order_relaxed) != rests) rests_.store(rests, std::memory_order_relaxed);
  if (walk == Walk::kAll) return call(0);
  if (walk == Walk::kHalf) return;
  calls_.wake_sleepers();
  if (helper_is_present()) return call(0);
  missed_ = 1;
}

void HelperPair::call(std::size_t place) noexcept {
  alone_ = false;
  place_ = place;
  calls_.advance();
}

/// Asks anew: what it said before may have been just before it lost its processor.
bool HelperPair::helper_is_present() noexcept {
  present_.store(false, std::memory_order_relaxed);
  for (int look = 0; look < kLooksForAnswer; ++look) {
    if (present_.load(std::memory_order_relaxed)) return true;
    spin_pause();
  }
  return false;
}

void HelperPair::look_for_helper(std::uint32_t epoch, std::size_t place) noexcept {
  ++parts_;
  if (left_.load(std::memory_order_relaxed) == kLeft + epoch) {
    alone_ = true;
    left_.store(0, std::memory_order_relaxed);
    present_.store(false, std::memory_order_relaxed);
  } else if (alone_ && present_.load(std::memory_order_relaxed) && helper_is_present()) {
    call(place);
  } else if (alone_) {
    calls_.wake_sleepers();  // to be asked, not called: it may be long until it has its processor
  }
  if (alone_) ++missed_;
}

void HelperPair::enter() noexcept { check_presence(now()); }

/// Sleeps in between as everyone does, or at once where it is to rest.
std::size_t HelperPair::wait_for_call(std::uint32_t number, Spin spin) noexcept {
  while (!look_for_call(number, spin)) {
    const Nanoseconds last = now();
    calls_.sleep(number);
    come_back(last, now());
  }
  looked_ = now();
  has_left_ = false;
  return place_;
}

/// Answers the even thread's questions meanwhile.
bool HelperPair::look_for_call(std::uint32_t number, Spin spin) noexcept {
  const Nanoseconds begin = now();
  for (Nanoseconds last = begin, at = begin; at - begin < longest_spin(spin); at = now()) {
    if (at - last > kTakenOff) come_back(last, at);
    last = at;
    if (calls_.has_reached(number)) return true;
    if (rests_.load(std::memory_order_relaxed)) return false;
    if (!present_.load(std::memory_order_relaxed)) present_.store(true, std::memory_order_relaxed);
    spin_pause();
  }
  return false;
}

/// A helper that did nothing was off its processor.
void HelperPair::come_back(Nanoseconds from, Nanoseconds to) noexcept {
  turn_.begin(to);
  checked_ += to - from;
}

bool HelperPair::leaves_at(std::uint32_t epoch, bool& slept) noexcept {
  const Nanoseconds at = now(), last = looked_;
  looked_ = at;
  if (at - last > kLongPart) {
    const bool has_slept = std::exchange(slept, false);
    if (check_presence(at) > kTakenOff) has_slept ? turn_.begin(at) : turn_.interrupted(last, at);
  }
  has_left_ = turn_.nearly_over(at);
  if (has_left_) left_.store(kLeft + epoch, std::memory_order_relaxed);
  return has_left_;
}

void HelperPair::give_way() noexcept {
  const Nanoseconds from = now();
  sched_yield();
  const Nanoseconds to = now();
  check_presence(to);
  turn_.yielded(from, to);
}

/// How long a helper has not had its processor since the latest check. To ask the system may cost it the processor, if its turn is over.
HelperPair::Nanoseconds HelperPair::check_presence(Nanoseconds at) noexcept {
  const Nanoseconds used = processor_time(), off = (at - checked_) - (used - used_);
  checked_ = at;
  used_ = used;
  return off;
}

}  // namespace lockstep::device::cpu
