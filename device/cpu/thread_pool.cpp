#include "device/cpu/thread_pool.h"

#include <algorithm>
#include <utility>

#include "device/cpu/float_mode.h"
#include "device/cpu/placement.h"
#include "device/cpu/thread_clock.h"

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kFewThreads = 8;  // that look at each other's flags themselves

}  // namespace

ThreadPool::ThreadPool(std::size_t num_threads, const std::vector<std::vector<int>>& processors, bool own_processors, const Turn& turn)
    : spin_(spin_of(own_processors)),
      arrivals_(std::make_unique<EpochFlag[]>(num_threads > 0 ? num_threads : 1)),
      times_(std::make_unique<Times[]>(num_threads > 0 ? num_threads : 1)),
      pairs_(std::make_unique<HelperPair[]>((num_threads + 1) / 2)) {
  for (std::size_t pair = 0; pair < (num_threads + 1) / 2; ++pair) pairs_[pair].set_turn(turn);
  workers_.reserve(num_threads > 0 ? num_threads - 1 : 0);
  for (std::size_t thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread, own = thread < processors.size() ? processors[thread] : std::vector<int>{}] {
      bind_this_thread(own);
      is_helper(thread) ? help(thread) : work(thread);
    });
  }
  if (!processors.empty()) bind_this_thread(processors.front());
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;
  start_.advance();
  for (std::size_t helper = 1; helper < size(); helper += 2) pairs_[helper / 2].call(0);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::wait_for(EpochFlag& flag, std::uint32_t epoch, Times& times, Spin spin) noexcept {
  if (flag.wait(epoch, spin, times.waited)) times.slept = true;
}

/// A busy process then comes to the processors of helpers, and stays there.
Spin ThreadPool::spin_of_thread(std::size_t thread) const noexcept {
  return walk_ == Walk::kAsTheyCan && !is_helper(thread) && spin_ == Spin::kLong ? Spin::kPatient : spin_;
}

void ThreadPool::wait_for_others(std::size_t thread, std::uint32_t epoch) noexcept {
  for (std::size_t peer = 0; peer < size(); ++peer) wait_for(arrivals_[peer], epoch, times_[thread], spin_of_thread(thread));
}

std::uint32_t ThreadPool::advance_shares(std::size_t thread) noexcept {
  if (does_neighbours(thread)) arrivals_[thread + 1].advance();
  return arrivals_[thread].advance();
}

bool ThreadPool::leave_at_barrier(std::size_t thread, std::size_t place) noexcept {
  const bool helpers_come_and_go = walk_ == Walk::kAsTheyCan;
  if (helpers_come_and_go && is_helper(thread)) {
    const std::uint32_t next = arrivals_[thread].epoch() + 1;
    if (pairs_[thread / 2].leaves_at(next, times_[thread].slept)) {
      arrivals_[thread].publish(next);  // behind this the walk may end without it
      return true;
    }
  }
  const std::uint32_t epoch = advance_shares(thread);
  if (size() <= kFewThreads || thread == 0) {
    wait_for_others(thread, epoch);
    if (size() > kFewThreads) release_.publish(epoch);
  } else {
    wait_for(release_, epoch, times_[thread], spin_of_thread(thread));
  }
  if (helpers_come_and_go && has_helper(thread)) pairs_[thread / 2].look_for_helper(epoch, place);
  return false;
}

void ThreadPool::arrive(std::size_t thread) noexcept { advance_shares(thread); }

void ThreadPool::await_others(std::size_t share) noexcept {
  const std::size_t thread = is_helper(share) && pairs_[share / 2].alone() ? share - 1 : share;
  wait_for_others(thread, arrivals_[share].epoch());
}

void ThreadPool::work_shares(std::size_t thread, std::size_t place) noexcept {
  Times& times = times_[thread];
  const bool measures = measures_ && !is_helper(thread);
  const Nanoseconds begin = measures ? now() : Nanoseconds{}, used = measures ? processor_time() : Nanoseconds{};
  times.waited = {};
  try {
    function_(context_, thread, place);
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  if (!measures) return;
  const Nanoseconds computed = processor_time() - used, present = now() - begin - times.waited;
  times.computed = std::min(computed, present);
  times.kept_off = present - times.computed;
}

void ThreadPool::run_erased(Walk walk, Erased function, const void* context) {
  function_ = function;
  context_ = context;
  walk_ = walk;
  if (size() > 2) start_.advance();
  if (has_helper(0)) pairs_[0].begin(walk);
  work_shares(0, 0);
  wait_for_others(0, advance_shares(0));
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

WalkReport ThreadPool::walk_erased(Walk walk, Erased function, const void* context) {
  WalkReport report;
  measures_ = size() > 1;
  const Nanoseconds begin = now();
  run_erased(walk, function, context);
  report.wall = now() - begin;
  measures_ = false;
  for (std::size_t thread = 0; thread < size(); thread += 2) {
    const HelperPair& pair = pairs_[thread / 2];
    report.computed = std::max(report.computed, times_[thread].computed);
    report.kept_off = std::max(report.kept_off, times_[thread].kept_off);
    report.parts = std::max(report.parts, pair.parts());
    report.missed = std::max(report.missed, pair.missed());
  }
  return report;
}

void ThreadPool::work(std::size_t thread) {
  const FloatMode mode;
  for (std::uint32_t run = 1;; ++run) {  // runs never overlap: the epoch moves by one
    wait_for(start_, run, times_[thread], spin_);
    if (!function_) return;
    if (has_helper(thread)) pairs_[thread / 2].begin(walk_);
    work_shares(thread, 0);
    advance_shares(thread);
  }
}

void ThreadPool::help(std::size_t thread) {
  const FloatMode mode;
  HelperPair& pair = pairs_[thread / 2];
  pair.enter();
  for (std::uint32_t call = 1;; ++call) {
    const std::size_t place = pair.wait_for_call(call, spin_);
    if (!function_) return;
    work_shares(thread, place);
    if (pair.has_left()) {
      pair.give_way();
    } else {
      arrivals_[thread].advance();
    }
  }
}

}  // namespace lockstep::device::cpu
