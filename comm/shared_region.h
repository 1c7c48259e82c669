#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/call_record.h"
#include "comm/options.h"

namespace lockstep::comm {

/// How far a rank is. Its owner alone writes it; all peers wait on it, so it has its cache line, with what they read next.
struct alignas(128) Arrival {
  std::atomic<std::uint32_t> epoch{0};    // rounds that this rank has published; also the futex
  std::atomic<std::uint32_t> waiters{0};  // peers that sleep on `epoch`
  std::array<CallRecord, 2> records{};    // of the round, by the lowest bit of its epoch
};

/// What a report says about a rank. Peers read it only when something is wrong.
struct alignas(64) RankStatus {
  std::atomic<std::uint32_t> attached{0};
  std::atomic<std::uint32_t> left{0};
  std::atomic<std::uint32_t> in_call{0};
  std::atomic<std::uint32_t> operation{0};
  std::atomic<std::uint32_t> root{0};
  std::atomic<std::uint64_t> size{0};
  std::atomic<std::uint64_t> calls{0};  // collectives begun
  std::atomic<std::uint64_t> step{0};
  std::array<std::atomic<std::uint64_t>, sizeof(Position::node) / 8> node{};
};

/// The first reason to give up. It is written once.
struct alignas(64) AbortNotice {
  std::atomic<std::uint32_t> state{0};  // 0: none, 1: being written, 2: there
  std::uint32_t length = 0;
  std::array<char, 16376> text{};
};

/// The memory that ranks on one machine share: for each rank an arrival, a status and two slots. Made of atomics and plain bytes at
/// computed offsets, so it may lie at another address in every process.
class SharedRegion {
 public:
  virtual ~SharedRegion() = default;
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  int size() const { return static_cast<int>(header().size); }
  std::size_t slot_bytes() const { return header().slot_bytes; }
  std::size_t slice_from_additions() const { return header().slice_from_additions; }

  Arrival& arrival(int rank) {
    return *reinterpret_cast<Arrival*>(base_ + offset_of_arrivals() + sizeof(Arrival) * static_cast<std::size_t>(rank));
  }
  RankStatus& status(int rank) {
    return *reinterpret_cast<RankStatus*>(base_ + offset_of_statuses(header().size) + sizeof(RankStatus) * static_cast<std::size_t>(rank));
  }
  std::byte* slot(int rank, std::uint32_t epoch) {
    return base_ + offset_of_slots(header().size) + (2 * static_cast<std::size_t>(rank) + (epoch & 1)) * header().slot_bytes;
  }

  /// Whether the process (or thread) of a rank that has attached is still there. A system call where ranks are processes.
  virtual bool alive(int rank) = 0;

  bool aborted() { return header().abort.state.load(std::memory_order_acquire) != 0; }
  /// Publishes the reason, unless there is one, and wakes every sleeper. Callable from any thread.
  void abort(std::string_view reason) noexcept;
  std::string abort_reason();

  /// "rank 2: step 5, node n07 linear, in collective 18: barrier", from what the rank has written last.
  std::string describe_rank(int rank);
  void set_position(int rank, const Position& position) noexcept;

 protected:
  SharedRegion() = default;

  static std::size_t bytes_needed(int size, const CommunicatorOptions& options);
  /// `memory` is zero, 128-byte aligned, of bytes_needed() bytes. `token` tells this region from every other.
  void create(std::byte* memory, int size, const CommunicatorOptions& options, std::uint64_t token);
  /// @throws CommError if `memory` of `bytes` bytes is no region with that token.
  void open(std::byte* memory, std::size_t bytes, std::uint64_t token);

 private:
  struct alignas(128) Header {
    std::uint64_t magic = 0;
    std::uint64_t token = 0;
    std::uint64_t size = 0;
    std::uint64_t slot_bytes = 0;
    std::uint64_t slice_from_additions = 0;
    AbortNotice abort;
  };

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  static std::size_t offset_of_arrivals() { return sizeof(Header); }
  static std::size_t offset_of_statuses(std::size_t size) { return offset_of_arrivals() + sizeof(Arrival) * size; }
  static std::size_t offset_of_slots(std::size_t size) {
    const std::size_t end = offset_of_statuses(size) + sizeof(RankStatus) * size;
    return (end + 4095) / 4096 * 4096;
  }

  std::byte* base_ = nullptr;
};

}  // namespace lockstep::comm
