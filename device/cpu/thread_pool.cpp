#include "device/cpu/thread_pool.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <sched.h>

#include "device/cpu/placement.h"
#include "device/futex.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kFewThreads = 8;  // that look at each other's flags themselves
constexpr std::chrono::seconds kSleep{3600};
constexpr int kLooksForAnswer = 64;
constexpr std::uint64_t kLeft = std::uint64_t{1} << 32;
// A helper looks at what processor time it got only where it was longer on its way from barrier to barrier than this, and has lost its
// processor if it lacks so much.
constexpr std::chrono::microseconds kLongPart{300}, kTakenOff{200};

using Clock = std::chrono::steady_clock;

std::chrono::nanoseconds now() noexcept { return Clock::now().time_since_epoch(); }

/// That of the calling thread.
std::chrono::nanoseconds processor_time() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

bool behind(std::uint32_t seen, std::uint32_t epoch) noexcept { return static_cast<std::int32_t>(seen - epoch) < 0; }

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : before_(_mm_getcsr()) {
  constexpr std::uint32_t kDefault = 0x1F80, kStatusFlags = 0x3F;
  if ((before_ & ~kStatusFlags) != kDefault) _mm_setcsr(kDefault);
}
FloatMode::~FloatMode() {
  if ((before_ & ~0x3Fu) != 0x1F80) _mm_setcsr(before_);
}
#else
FloatMode::FloatMode() = default;
FloatMode::~FloatMode() = default;
#endif

ThreadPool::ThreadPool(std::size_t num_threads, const std::vector<std::vector<int>>& processors, bool own_processors, const Turn& turn)
    : spin_(spin_of(own_processors)),
      arrivals_(std::make_unique<Flag[]>(num_threads > 0 ? num_threads : 1)),
      times_(std::make_unique<Times[]>(num_threads > 0 ? num_threads : 1)),
      pairs_(std::make_unique<Pair[]>((num_threads + 1) / 2)) {
  for (std::size_t pair = 0; pair < (num_threads + 1) / 2; ++pair) pairs_[pair].turn = turn;
  workers_.reserve(num_threads > 0 ? num_threads - 1 : 0);
  for (std::size_t thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread, own = thread < processors.size() ? processors[thread] : std::vector<int>{}] {
      bind_this_thread(own);
      thread % 2 == 0 ? work(thread) : help(thread);
    });
  }
  if (!processors.empty()) bind_this_thread(processors.front());
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;
  advance(start_);
  for (std::size_t helper = 1; helper < size(); helper += 2) advance(pairs_[helper / 2].call);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::publish(Flag& flag, std::uint32_t epoch) noexcept {
  // Either this thread sees the sleeper, or the sleeper, which counts itself first, sees the new epoch.
  flag.epoch.store(epoch, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(flag.epoch);
}

std::uint32_t ThreadPool::advance(Flag& flag) noexcept {
  const std::uint32_t epoch = flag.epoch.load(std::memory_order_relaxed) + 1;
  publish(flag, epoch);
  return epoch;
}

void ThreadPool::wait_for(Flag& flag, std::uint32_t epoch, Times& times, Spin spin) noexcept {
  Clock::time_point began{};
  if (!spin_until([&] { return !behind(flag.epoch.load(std::memory_order_acquire), epoch); }, spin, &began)) {
    times.slept = true;
    flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (std::uint32_t seen = flag.epoch.load(std::memory_order_seq_cst); behind(seen, epoch);
         seen = flag.epoch.load(std::memory_order_seq_cst)) {
      futex_wait(flag.epoch, seen, kSleep);
    }
    flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (began != Clock::time_point{}) times.waited += Clock::now() - began;
}

/// A busy process then comes to the processors of helpers, and stays there.
Spin ThreadPool::spin_of_thread(std::size_t thread) const noexcept {
  return walk_ == Walk::kAsTheyCan && thread % 2 == 0 && spin_ == Spin::kLong ? Spin::kPatient : spin_;
}

void ThreadPool::wait_for_others(std::size_t thread, std::uint32_t epoch) noexcept {
  for (std::size_t peer = 0; peer < size(); ++peer) wait_for(arrivals_[peer], epoch, times_[thread], spin_of_thread(thread));
}

std::uint32_t ThreadPool::advance_shares(std::size_t thread) noexcept {
  if (does_neighbours(thread)) advance(arrivals_[thread + 1]);
  return advance(arrivals_[thread]);
}

bool ThreadPool::leave_at_barrier(std::size_t thread, std::size_t place) noexcept {
  const bool helper = thread % 2 == 1;
  if (helper && walk_ == Walk::kAsTheyCan && turn_is_over(thread)) {
    const std::uint32_t epoch = arrivals_[thread].epoch.load(std::memory_order_relaxed) + 1;
    pairs_[thread / 2].left.store(kLeft + epoch, std::memory_order_relaxed);
    publish(arrivals_[thread], epoch);  // behind this the walk may end without it
    return true;
  }
  const std::uint32_t epoch = advance_shares(thread);
  if (size() <= kFewThreads || thread == 0) {
    wait_for_others(thread, epoch);
    if (size() > kFewThreads) publish(release_, epoch);
  } else {
    wait_for(release_, epoch, times_[thread], spin_of_thread(thread));
  }
  if (!helper && walk_ == Walk::kAsTheyCan) look_for_helper(thread, epoch, place);
  return false;
}

void ThreadPool::arrive(std::size_t thread) noexcept { advance_shares(thread); }

void ThreadPool::await_others(std::size_t share) noexcept {
  const std::size_t thread = share % 2 == 1 && pairs_[share / 2].alone ? share - 1 : share;
  wait_for_others(thread, arrivals_[share].epoch.load(std::memory_order_relaxed));
}

void ThreadPool::begin_pair(std::size_t thread) noexcept {
  if (thread + 1 == size()) return;
  Pair& pair = pairs_[thread / 2];
  pair.parts = 1;
  pair.missed = 0;
  pair.alone = true;
  const bool rests = walk_ == Walk::kHalf;
  if (pair.rests.load(std::memory_order_relaxed) != rests) pair.rests.store(rests, std::memory_order_relaxed);
  if (walk_ == Walk::kAll) return call_helper(thread, 0);
  if (walk_ == Walk::kHalf) return;
  wake_helper(pair);
  if (helper_is_present(pair)) return call_helper(thread, 0);
  pair.missed = 1;
}

void ThreadPool::call_helper(std::size_t thread, std::size_t place) noexcept {
  Pair& pair = pairs_[thread / 2];
  pair.alone = false;
  pair.place = place;
  advance(pair.call);
}

/// To be asked, not called: it may be long until it has its processor.
void ThreadPool::wake_helper(Pair& pair) noexcept {
  if (pair.call.sleepers.load(std::memory_order_relaxed) != 0) futex_wake_all(pair.call.epoch);
}

/// Asks anew: what it said before may have been just before it lost its processor.
bool ThreadPool::helper_is_present(Pair& pair) noexcept {
  pair.present.store(false, std::memory_order_relaxed);
  for (int look = 0; look < kLooksForAnswer; ++look) {
    if (pair.present.load(std::memory_order_relaxed)) return true;
    spin_pause();
  }
  return false;
}

void ThreadPool::look_for_helper(std::size_t thread, std::uint32_t epoch, std::size_t place) noexcept {
  if (thread + 1 == size()) return;
  Pair& pair = pairs_[thread / 2];
  ++pair.parts;
  if (pair.left.load(std::memory_order_relaxed) == kLeft + epoch) {
    pair.alone = true;
    pair.left.store(0, std::memory_order_relaxed);
    pair.present.store(false, std::memory_order_relaxed);
  } else if (pair.alone && pair.present.load(std::memory_order_relaxed) && helper_is_present(pair)) {
    call_helper(thread, place);
  } else if (pair.alone) {
    wake_helper(pair);
  }
  if (pair.alone) ++pair.missed;
}

void ThreadPool::work_shares(std::size_t thread, std::size_t place) noexcept {
  Times& times = times_[thread];
  const bool measures = measures_ && thread % 2 == 0;
  const Clock::time_point begin = measures ? Clock::now() : Clock::time_point{};
  const Nanoseconds used = measures ? processor_time() : Nanoseconds{};
  times.waited = {};
  try {
    function_(context_, thread, place);
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  if (!measures) return;
  const Nanoseconds computed = processor_time() - used, present = Clock::now() - begin - times.waited;
  times.computed = std::min(computed, present);
  times.kept_off = present - times.computed;
}

void ThreadPool::run_erased(Walk walk, Erased function, const void* context) {
  function_ = function;
  context_ = context;
  walk_ = walk;
  if (size() > 2) advance(start_);
  begin_pair(0);
  work_shares(0, 0);
  wait_for_others(0, advance_shares(0));
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

WalkReport ThreadPool::walk_erased(Walk walk, Erased function, const void* context) {
  WalkReport report;
  measures_ = size() > 1;
  const Clock::time_point begin = Clock::now();
  run_erased(walk, function, context);
  report.wall = Clock::now() - begin;
  measures_ = false;
  for (std::size_t thread = 0; thread < size(); thread += 2) {
    const Pair& pair = pairs_[thread / 2];
    report.computed = std::max(report.computed, times_[thread].computed);
    report.kept_off = std::max(report.kept_off, times_[thread].kept_off);
    report.parts = std::max(report.parts, pair.parts);
    report.missed = std::max(report.missed, pair.missed);
  }
  return report;
}

void ThreadPool::work(std::size_t thread) {
  const FloatMode mode;
  for (std::uint32_t run = 1;; ++run) {  // runs never overlap: the epoch moves by one
    wait_for(start_, run, times_[thread], spin_);
    if (!function_) return;
    begin_pair(thread);
    work_shares(thread, 0);
    advance_shares(thread);
  }
}

/// Answers the even thread's questions, and sleeps in between as everyone does, or at once where it is to rest.
void ThreadPool::wait_for_call(Pair& pair, std::uint32_t call) noexcept {
  const auto called = [&] { return !behind(pair.call.epoch.load(std::memory_order_acquire), call); };
  for (;;) {
    const Nanoseconds begin = now();
    for (Nanoseconds last = begin, at = begin; at - begin < longest_spin(spin_); at = now()) {
      if (at - last > kTakenOff) come_back(pair, last, at);
      last = at;
      if (called()) return;
      if (pair.rests.load(std::memory_order_relaxed)) break;
      if (!pair.present.load(std::memory_order_relaxed)) pair.present.store(true, std::memory_order_relaxed);
      spin_pause();
    }
    const Nanoseconds last = now();
    pair.call.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = pair.call.epoch.load(std::memory_order_seq_cst);
    if (behind(seen, call)) futex_wait(pair.call.epoch, seen, kSleep);
    pair.call.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    come_back(pair, last, now());
    if (called()) return;
  }
}

/// A helper that did nothing was off its processor.
void ThreadPool::come_back(Pair& pair, Nanoseconds from, Nanoseconds to) noexcept {
  pair.turn.begin(to);
  pair.checked += to - from;
}

void ThreadPool::help(std::size_t thread) {
  const FloatMode mode;
  Pair& pair = pairs_[thread / 2];
  check_presence(pair, now());
  for (std::uint32_t call = 1;; ++call) {
    wait_for_call(pair, call);
    if (!function_) return;
    pair.looked = now();
    pair.gone = false;
    work_shares(thread, pair.place);
    if (!pair.gone) {
      advance(arrivals_[thread]);
      continue;
    }
    const Nanoseconds from = now();
    sched_yield();
    const Nanoseconds to = now();
    check_presence(pair, to);
    pair.turn.yielded(from, to);
  }
}

/// How long a helper has not had its processor since the latest check. To ask the system may cost it the processor, if its turn is over.
ThreadPool::Nanoseconds ThreadPool::check_presence(Pair& pair, Nanoseconds at) noexcept {
  const Nanoseconds used = processor_time(), off = (at - pair.checked) - (used - pair.used);
  pair.checked = at;
  pair.used = used;
  return off;
}

bool ThreadPool::turn_is_over(std::size_t thread) noexcept {
  Pair& pair = pairs_[thread / 2];
  const Nanoseconds at = now(), last = pair.looked;
  pair.looked = at;
  if (at - last > kLongPart) {
    const bool slept = std::exchange(times_[thread].slept, false);
    if (check_presence(pair, at) > kTakenOff) slept ? pair.turn.begin(at) : pair.turn.interrupted(last, at);
  }
  pair.gone = pair.turn.nearly_over(at);
  return pair.gone;
}

}  // namespace lockstep::device::cpu
