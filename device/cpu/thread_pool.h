#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lockstep::device::cpu {

/// Threads that run one function together, fork and join. A waiting thread spins for a few microseconds, about as long as what stands
/// between two products of a step, and then sleeps: with more threads than cores, spinning on would keep the others from working. Not
/// pinned: the launcher binds the process.
class ThreadPool {
 public:
  /// @param num_threads the calling thread included; at least 1.
  explicit ThreadPool(std::size_t num_threads);
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

 private:
  using Erased = void (*)(void*, std::size_t);
  void run_erased(Erased function, void* context);
  void call(std::size_t thread) noexcept;
  void work(std::size_t thread);

  alignas(64) std::atomic<std::int32_t> epoch_{0};    // a change starts a run
  alignas(64) std::atomic<std::int32_t> working_{0};  // threads that have not finished it
  alignas(64) Erased function_ = nullptr;             // null: the pool ends
  void* context_ = nullptr;
  std::mutex failure_mutex_;
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
