#include "device/cpu/thread_pool.h"

#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::device::cpu {
namespace {

constexpr int kSpins = 250;  // then a futex; measured: half the cost of spinning on when there are more threads than cores

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// Until `value` is no longer `old`.
void wait_while(const std::atomic<std::int32_t>& value, std::int32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

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

ThreadPool::ThreadPool(std::size_t num_threads) {
  workers_.reserve(num_threads > 0 ? num_threads - 1 : 0);
  for (std::size_t thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

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
  if (!workers_.empty()) {
    working_.store(static_cast<std::int32_t>(workers_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_acq_rel);
    epoch_.notify_all();
  }
  call(0);
  for (std::int32_t left = working_.load(std::memory_order_acquire); left != 0; left = working_.load(std::memory_order_acquire)) {
    wait_while(working_, left);
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(std::size_t thread) {
  const FloatMode mode;
  std::int32_t seen = 0;
  for (;;) {
    wait_while(epoch_, seen);
    ++seen;  // runs never overlap: the epoch moves by one
    if (!function_) return;
    call(thread);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

}  // namespace lockstep::device::cpu
