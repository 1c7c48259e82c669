#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "device/cpu/thread_pool.h"

namespace lockstep::device::cpu {

/// What an op does with a buffer. Every thread runs every op of a program and does a part of it; so a buffer is either shared, and the part
/// of one thread may be what another reads next, or every thread has a copy of its own (thread 0: the buffer itself), in which all write
/// the same numbers.
struct Access {
  enum class Use : std::uint8_t {
    kRead,
    kWrite,
    kWritePart,  // a part that no other write touches: products that stand side by side in one matrix
    // Of products: the op begins with the thread's own part, and waits for the others before it touches theirs (await_others).
    kReadAwaited,
    kChangeAwaited,
    kReadCopy,
    kWriteCopy,
  };
  const void* buffer = nullptr;
  Use use = Use::kRead;
  /// Names the way in which the buffer is shared out over the threads. Who reads by the same shares as it was written finds its own part
  /// only. Null: any thread may touch anything.
  const void* shares = nullptr;
};

/// A list of ops that all threads of a pool walk together, with a barrier only before an op that touches what another thread may have
/// written, or may still be reading; where the op waits itself, an arrival is enough. Keeps its memory from step to step.
class StepProgram {
 public:
  /// Appends `op`, a trivially copyable callable of the thread's number that does not throw.
  template <class Op>
  void add(std::span<const Access> accesses, const Op& op) {
    static_assert(std::is_trivially_copyable_v<Op> && sizeof(Op) <= kOpBytes && alignof(Op) <= 16);
    Entry& entry = next_entry();
    entry.call = [](const void* stored, std::size_t thread) { (*static_cast<const Op*>(stored))(thread); };
    entry.before = note(accesses);
    new (entry.stored) Op(op);
  }

  /// Appends another piece of the latest op, which touches nothing but what that does: threads do not meet before it, except where helpers
  /// come and go, so that those need not wait for the end of a long op.
  template <class Op>
  void add_piece(const Op& op) {
    add({}, op);
    entries_[size_ - 1].before = Meeting::kOpening;
  }

  bool empty() const { return size_ == 0; }
  /// Walks what was added, and forgets it.
  WalkReport run(ThreadPool& pool, Walk walk = Walk::kAll);
  void clear();
  /// Barriers of the latest run, the join at its end not counted.
  std::size_t barriers() const { return count(Meeting::kBarrier); }
  /// Likewise, of arrivals, and of places where only those meet whose helpers come and go.
  std::size_t arrivals() const { return count(Meeting::kArrival); }
  std::size_t openings() const { return count(Meeting::kOpening); }

 private:
  static constexpr std::size_t kOpBytes = 304;
  enum class Meeting : std::uint8_t {
    kNone,
    kOpening,  // a barrier where helpers come and go, else nothing
    kArrival,
    kBarrier,
  };
  struct Entry {
    void (*call)(const void* stored, std::size_t thread);
    Meeting before;
    alignas(16) std::byte stored[kOpBytes];
  };
  /// What was done to a buffer since the last barrier.
  struct Touched {
    const void* buffer;
    const void* shares;
    bool read, written, only_parts, copy_read, copy_written;
  };

  Entry& next_entry();
  Meeting note(std::span<const Access> accesses);
  Meeting needed(const Access& access) const;
  std::size_t count(Meeting meeting) const { return meetings_[static_cast<std::size_t>(meeting)]; }
  void remember(const Access& access);

  std::vector<Entry> entries_;  // the first size_ are the program
  std::size_t size_ = 0;
  std::vector<Touched> touched_;
  std::array<std::size_t, 4> meetings_{};  // of the latest run, of each kind
};

}  // namespace lockstep::device::cpu
