#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <type_traits>

#include "comm/communicator.h"

namespace lockstep::launcher {

/// Where this rank stands: written by the thread that computes, without a lock or a system call, read by the one that reports. A sequence
/// lock over atomic words.
class PositionBoard {
 public:
  void set(const comm::Position& position) noexcept {
    Words words{};
    std::memcpy(words.data(), &position, sizeof position);
    sequence_.fetch_add(1, std::memory_order_acq_rel);
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    sequence_.fetch_add(1, std::memory_order_acq_rel);
  }

  comm::Position get() const noexcept {
    Words words{};
    for (int tries = 1;; ++tries) {
      const std::uint64_t before = sequence_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && sequence_.load(std::memory_order_acquire) == before) break;
      if (tries % kTriesBeforeYield == 0) std::this_thread::yield();  // the writer may have lost its core in between
    }
    comm::Position position;
    std::memcpy(static_cast<void*>(&position), words.data(), sizeof position);
    position.node[sizeof position.node - 1] = 0;
    return position;
  }

 private:
  static constexpr int kTriesBeforeYield = 100;
  using Words = std::array<std::uint64_t, sizeof(comm::Position) / sizeof(std::uint64_t)>;
  static_assert(std::is_trivially_copyable_v<comm::Position> && sizeof(Words) == sizeof(comm::Position));

  std::atomic<std::uint64_t> sequence_{0};
  std::array<std::atomic<std::uint64_t>, Words{}.size()> words_{};
};

}  // namespace lockstep::launcher
