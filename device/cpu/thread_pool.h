#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "device/futex.h"

namespace lockstep::device::cpu {

/// Threads that run one function together. They fork and join once a run; in between they meet at barriers, which cost two cache lines on
/// their way. A waiting thread looks for a while (device/futex.h) and then sleeps. Takes no lock and allocates nothing once it stands.
class ThreadPool {
 public:
  /// @param num_threads the calling thread included; at least 1.
  /// @param processors [num_threads] where each thread may run; empty: anywhere. The calling thread stays bound.
  /// @param own_processors no other thread of the job needs the processor of a waiting one.
  explicit ThreadPool(std::size_t num_threads, const std::vector<std::vector<int>>& processors = {}, bool own_processors = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }

  /// function(i) for every i in [0, size()), each in a thread of its own; the caller is thread 0. Rethrows the first exception, once all
  /// are done. Allocates nothing. Not reentrant.
  template <class Function>
  void run(Function&& function) {
    using Callable = std::remove_reference_t<Function>;
    run_erased([](void* context, std::size_t thread) { (*static_cast<Callable*>(context))(thread); },
               const_cast<void*>(static_cast<const void*>(&function)));
  }

  /// Within a run: waits until every thread has called it as often as this one; what they wrote before is visible then. All threads of a
  /// run call it equally often, so a function that throws must not be one that meets others.
  void barrier(std::size_t thread) noexcept;

  /// The two halves of a barrier between which a thread may do what needs nobody: it says that it has come, and later waits for the others
  /// to have come as far. All threads of a run arrive equally often; who needs nothing of the others need not wait.
  void arrive(std::size_t thread) noexcept;
  void await_others(std::size_t thread) noexcept;

 private:
  /// A thread's progress, alone in the cache lines that a core fetches together.
  struct alignas(128) Flag {
    std::atomic<std::uint32_t> epoch{0};
    std::atomic<std::uint32_t> sleepers{0};
  };
  using Erased = void (*)(void*, std::size_t);

  static void publish(Flag& flag, std::uint32_t epoch) noexcept;
  static std::uint32_t advance(Flag& flag) noexcept;
  void wait_for(Flag& flag, std::uint32_t epoch) noexcept;
  void wait_for_others(std::uint32_t epoch) noexcept;
  void run_erased(Erased function, void* context);
  void call(std::size_t thread) noexcept;
  void work(std::size_t thread);  // the life of a worker

  const Spin spin_;
  std::unique_ptr<Flag[]> arrivals_;        // [threads]
  Flag start_;                              // a change starts a run
  Flag release_;                            // thread 0 has seen all others arrive
  alignas(128) Erased function_ = nullptr;  // null: the pool ends
  void* context_ = nullptr;
  std::mutex failure_mutex_;  // taken only by a thread whose function throws
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

/// The floating-point mode of the numeric contract while it lives: round to nearest, subnormals kept. What the caller had comes back
/// afterwards.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint32_t before_ = 0;
};

}  // namespace lockstep::device::cpu
