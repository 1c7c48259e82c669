#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "device/cpu/crew.h"
#include "device/cpu/epoch_flag.h"
#include "device/cpu/helper_pair.h"

namespace lockstep::device::cpu {

/// Threads that run one function together. They fork and join once a run; in between they meet at barriers, which cost two cache lines on
/// their way. A waiting thread looks for a while (device/futex.h) and then sleeps. Takes no lock and allocates nothing once it stands.
class ThreadPool {
 public:
  /// @param num_threads the calling thread included; at least 1.
  /// @param processors [num_threads] where each thread may run; empty: anywhere. The calling thread stays bound.
  /// @param own_processors no other thread of the job needs the processor of a waiting one.
  /// @param turn what helpers begin with; tests let them come and go all the time.
  explicit ThreadPool(std::size_t num_threads, const std::vector<std::vector<int>>& processors = {}, bool own_processors = false,
                      const Turn& turn = Turn());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }

  /// function(i) for every i in [0, size()), each in a thread of its own; the caller is thread 0. Rethrows the first exception, once all
  /// are done. Allocates nothing. Not reentrant.
  template <class Function>
  void run(Function&& function) {
    const auto without_place = [&function](std::size_t thread, std::size_t) { function(thread); };
    run_erased(Walk::kAll, erased<decltype(without_place)>, &without_place);
  }

  /// Threads that walk a list together, of which each does a share. function(i, place) in a thread is to walk from `place` to the end, or
  /// to where leave_at_barrier() says that it leaves, and must not throw. Helpers (crew.h) may be called several times, or not at all; for
  /// each entry a thread asks does_neighbours() whether it does the share of thread i + 1 as well. Else as run().
  template <class Function>
  WalkReport walk(Walk walk, Function&& function) {
    return walk_erased(walk, erased<std::remove_reference_t<Function>>, &function);
  }

  /// Within a walk: waits until every thread has called it as often as this one; what they wrote before is visible then. All threads call
  /// it equally often. Behind it lies the entry at `place`. True: the calling thread, a helper, goes no further.
  bool leave_at_barrier(std::size_t thread, std::size_t place) noexcept;

  /// The two halves of a barrier between which a thread may do what needs nobody: it says that it has come, and later waits for the others
  /// to have come as far. All threads of a run arrive equally often; who needs nothing of the others need not wait. A thread waits also for
  /// a share of its neighbour's that it does.
  void arrive(std::size_t thread) noexcept;
  void await_others(std::size_t share) noexcept;

  bool does_neighbours(std::size_t thread) const noexcept { return thread % 2 == 0 && pairs_[thread / 2].alone(); }

 private:
  using Nanoseconds = std::chrono::nanoseconds;
  /// How a thread spent its part of a walk.
  struct alignas(128) Times {
    Nanoseconds waited{}, computed{}, kept_off{};
    bool slept = false;
  };
  using Erased = void (*)(const void*, std::size_t, std::size_t);

  template <class Function>
  static void erased(const void* context, std::size_t thread, std::size_t place) {
    (*static_cast<Function*>(const_cast<void*>(context)))(thread, place);
  }

  bool has_helper(std::size_t thread) const noexcept { return thread % 2 == 0 && thread + 1 < size(); }
  bool is_helper(std::size_t thread) const noexcept { return thread % 2 == 1; }
  void wait_for(EpochFlag& flag, std::uint32_t epoch, Times& times, Spin spin) noexcept;
  Spin spin_of_thread(std::size_t thread) const noexcept;
  void wait_for_others(std::size_t thread, std::uint32_t epoch) noexcept;
  std::uint32_t advance_shares(std::size_t thread) noexcept;
  void run_erased(Walk walk, Erased function, const void* context);
  WalkReport walk_erased(Walk walk, Erased function, const void* context);
  void work_shares(std::size_t thread, std::size_t place) noexcept;
  void work(std::size_t thread);  // the life of an even worker
  void help(std::size_t thread);  // and of a helper

  const Spin spin_;
  std::unique_ptr<EpochFlag[]> arrivals_;   // [threads]
  std::unique_ptr<Times[]> times_;          // [threads]
  std::unique_ptr<HelperPair[]> pairs_;     // [threads / 2, rounded up]
  EpochFlag start_;                         // a change starts the even threads
  EpochFlag release_;                       // thread 0 has seen all others arrive
  alignas(128) Erased function_ = nullptr;  // null: the pool ends
  const void* context_ = nullptr;
  Walk walk_ = Walk::kAll;
  bool measures_ = false;
  std::mutex failure_mutex_;  // taken only by a thread whose function throws
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep::device::cpu
