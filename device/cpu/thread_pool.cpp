#include "device/cpu/thread_pool.h"

#include <chrono>
#include <utility>

#include "device/cpu/placement.h"
#include "device/futex.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kFewThreads = 8;  // that look at each other's flags themselves
constexpr std::chrono::seconds kSleep{3600};

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

ThreadPool::ThreadPool(std::size_t num_threads, const std::vector<std::vector<int>>& processors, bool own_processors)
    : spin_(spin_of(own_processors)), arrivals_(std::make_unique<Flag[]>(num_threads > 0 ? num_threads : 1)) {
  workers_.reserve(num_threads > 0 ? num_threads - 1 : 0);
  for (std::size_t thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread, own = thread < processors.size() ? processors[thread] : std::vector<int>{}] {
      bind_this_thread(own);
      work(thread);
    });
  }
  if (!processors.empty()) bind_this_thread(processors.front());
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;
  advance(start_);
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

void ThreadPool::wait_for(Flag& flag, std::uint32_t epoch) noexcept {
  const auto behind = [epoch](std::uint32_t seen) { return static_cast<std::int32_t>(seen - epoch) < 0; };
  if (spin_until([&] { return !behind(flag.epoch.load(std::memory_order_acquire)); }, spin_)) return;
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (std::uint32_t seen = flag.epoch.load(std::memory_order_seq_cst); behind(seen); seen = flag.epoch.load(std::memory_order_seq_cst)) {
    futex_wait(flag.epoch, seen, kSleep);
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::wait_for_others(std::uint32_t epoch) noexcept {
  for (std::size_t peer = 0; peer < size(); ++peer) wait_for(arrivals_[peer], epoch);
}

void ThreadPool::barrier(std::size_t thread) noexcept {
  const std::uint32_t epoch = advance(arrivals_[thread]);
  if (size() <= kFewThreads) return wait_for_others(epoch);
  if (thread != 0) return wait_for(release_, epoch);
  wait_for_others(epoch);
  publish(release_, epoch);
}

void ThreadPool::arrive(std::size_t thread) noexcept { advance(arrivals_[thread]); }

void ThreadPool::await_others(std::size_t thread) noexcept { wait_for_others(arrivals_[thread].epoch.load(std::memory_order_relaxed)); }

void ThreadPool::call(std::size_t thread) noexcept {
  try {
    function_(context_, thread);
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadPool::run_erased(Erased function, void* context) {
  function_ = function;
  context_ = context;
  if (!workers_.empty()) advance(start_);
  call(0);
  wait_for_others(advance(arrivals_[0]));
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(std::size_t thread) {
  const FloatMode mode;
  for (std::uint32_t run = 1;; ++run) {  // runs never overlap: the epoch moves by one
    wait_for(start_, run);
    if (!function_) return;
    call(thread);
    advance(arrivals_[thread]);
  }
}

}  // namespace lockstep::device::cpu
