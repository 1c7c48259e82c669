#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simt/fiber.h"
#include "simt/portable_host.h"
#include "simt/simt.h"

/// Runs kernels: one fiber a thread, some blocks at a time, all in the thread that asks. A kernel whose threads all spin hands control
/// back, so that the host can do what they wait for, and goes on at the next turn.
namespace simt {

constexpr std::size_t kMaxShared = 227 * 1024;  // static and dynamic, of a block

enum class Progress { kDone, kBlocked, kFailed };

struct PendingCopy {
  void* to;
  const void* from;  // null: zeros
};

enum class FiberState : std::uint8_t { kReady, kWaiting, kDone };

struct Fiber : ThreadIndices {
  Flow flow;
  Stack stack;
  FiberState state = FiberState::kDone;
  bool polling = false;
  bool started = false;  // and not ended
  unsigned number = 0;   // in its block
  std::uint64_t priority = 0;
  const char* waits_for = "";
  Site site;
  std::vector<PendingCopy> copies;      // cp.async, oldest first
  std::vector<std::size_t> group_ends;  // of the committed groups, in `copies`
  struct Block* resident = nullptr;
};

struct WarpState {
  unsigned exist = 0;  // lanes
  unsigned live = 0;
  std::array<Collective, 16> pending;
  int num_pending = 0;
};

struct SharedObject {
  const void* tag;
  char* data;
  std::size_t bytes;
};

/// A block that is resident, and its shared memory: objects between red zones.
struct Block : BlockIndices {
  std::vector<Fiber*> fibers;
  std::vector<WarpState> warps;
  unsigned live = 0;
  bool active = false;
  std::vector<Fiber*> at_barrier;
  Site barrier_site;
  BlockReduction reduction = BlockReduction::kNone;
  int accumulated = 0;
  int reduced = 0;
  unsigned epoch = 0;
  char barrier_tags[2] = {};
  char* arena = nullptr;
  std::size_t arena_used = 0;
  std::size_t static_bytes = 0;
  SharedObject dynamic{};
  std::vector<SharedObject> objects;
};

/// First in, first out.
class FiberQueue {
 public:
  void push(Fiber* fiber) {
    if (count_ == slots_.size()) grow();
    slots_[(first_ + count_++) & (slots_.size() - 1)] = fiber;
  }
  /// Not empty.
  Fiber* pop() {
    Fiber* fiber = slots_[first_];
    first_ = (first_ + 1) & (slots_.size() - 1);
    --count_;
    return fiber;
  }

 private:
  void grow() {
    std::vector<Fiber*> more(slots_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) more[i] = slots_[(first_ + i) & (slots_.size() - 1)];
    slots_ = std::move(more);
    first_ = 0;
  }
  std::vector<Fiber*> slots_ = std::vector<Fiber*>(256);  // a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// Thrown in a kernel's thread that did what it must not; the error is in the grid.
struct ThreadFailed {};

/// "rows.cuh:12".
std::string place(const Site& site);

/// One run of a kernel.
class Grid {
 public:
  explicit Grid(KernelLaunch launch);
  ~Grid();
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  /// Runs until the end, an error, or until all threads spin. Only in the thread that called it first.
  Progress run();
  const std::string& error() const { return error_; }
  /// Changes while threads do more than spin.
  std::uint64_t progress_made() const { return progress_made_; }
  std::string where_threads_wait() const;
  std::string kernel_name() const;
  /// Ends the run as failed, for a reason that lies outside.
  void abandon(const std::string& reason) { error_ = reason; }

  // For the code of kernels' threads (waits.cpp, warp.cpp).
  int arrive_at_barrier(BlockReduction reduction, int predicate, Site site);
  void arrive_at_collective(unsigned mask, void* argument, void (*compute)(Collective&), const char* what, Site site);
  void poll_and_yield();
  [[noreturn]] void fail_thread(const std::string& text);
  void* static_object(const void* tag, std::size_t bytes, std::size_t alignment);
  void* dynamic_object();
  bool in_shared(const void* address, std::size_t bytes) const;
  void thread_body(Fiber& fiber);

  Counters counted;  // of this run

 private:
  enum class Reason { kNone, kIdle, kBlockEnded, kFailed, kNothingReady };

  bool can_start_more() const;
  void start_block();
  void start_threads(Block& block);
  std::size_t arena_bytes_of_block() const;
  void give_shared_memory(Block& block);
  void check_red_zones(Block& block);
  void release_barrier(Block& block);
  void finish_thread(Fiber& fiber);
  void leave(Fiber& fiber);
  void push(Fiber* fiber);
  void push_all(Fiber* const* fibers, std::size_t count);
  Fiber* pop();
  void next(Fiber& from, bool last);
  void to_host(Fiber& from, Reason reason, bool last);
  std::uint64_t random();
  std::string deadlock_text() const;

  KernelLaunch launch_;
  Config config_;
  std::uint64_t num_blocks_ = 0;
  std::uint64_t next_block_ = 0;
  std::uint64_t max_resident_ = 1;
  unsigned threads_per_block_ = 0;
  std::vector<std::uint32_t> block_order_;
  std::vector<std::unique_ptr<Block>> blocks_;
  FiberQueue queue_;           // forward, reverse
  std::vector<Fiber*> ready_;  // random; one warp first: a heap
  std::size_t num_ready_ = 0;
  std::size_t num_polling_ = 0;  // of those ready
  std::size_t idle_polls_ = 0;
  std::uint64_t progress_made_ = 0;
  std::uint64_t random_state_ = 1;
  Reason reason_ = Reason::kNone;
  std::string error_;
  Flow host_;
  char* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::size_t arena_next_ = 0;
  char start_tag_ = 0;
  char end_tag_ = 0;
};

/// The grid that this thread runs at the moment.
Grid* current_grid();
inline Fiber& current_fiber() { return *static_cast<Fiber*>(current_thread); }

/// The demangled name of the function at `address`, without its parameters.
std::string function_name(const void* address);
/// Empty: no one wrote between the allocations of device memory. Implemented by the runtime.
std::string damaged_red_zones();

}  // namespace simt
