#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nccl.h>

#include "simt/runtime.h"

/// What the ranks of a stand-in NCCL communicator share, and the operations on it. Ranks may be threads or processes: the meeting place is
/// a segment of shared memory; each reads its peers' device memory directly.
namespace simt::nccl {

constexpr int kMaxRanks = 32;

enum class Kind : std::int32_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce, kSend, kReceive };

/// What must agree.
struct Signature {
  Kind kind = Kind::kAllReduce;
  ncclDataType_t type = ncclFloat32;
  std::uint64_t count = 0;
  std::int32_t reduction = 0;
  std::int32_t root = 0;
  bool operator==(const Signature&) const = default;
};
std::string describe(const Signature& signature);
std::size_t bytes_of(ncclDataType_t type);

struct Posting {
  Signature signature;
  SharedAddress from;
};

/// Collectives: a rank posts, waits for all postings, reads, waits until all have read, writes.
struct RankSlot {
  std::atomic<std::uint32_t> attached;
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> read;
  std::array<Posting, 2> postings;
};

/// Sends of one rank to another, in order.
struct Channel {
  static constexpr std::uint64_t kDepth = 16;
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> taken;
  std::array<Posting, kDepth> postings;
};

struct Segment {
  std::atomic<std::uint32_t> attached;
  std::atomic<std::uint32_t> error;  // 1: being written, 2: there
  char error_text[512];
  std::array<RankSlot, kMaxRanks> ranks;
  std::array<Channel, kMaxRanks * kMaxRanks> channels;  // [from][to]
};

/// A rank's side of a communicator. Operations keep it alive.
struct Group {
  Segment* segment = nullptr;
  std::string name;
  int rank = 0;
  int size = 1;
  bool blocking = true;
  std::atomic<bool> aborted = false;
  std::atomic<int> async_error = ncclSuccess;
  std::uint64_t next_collective = 0;

  ~Group();
  bool complete() const { return segment->attached >= static_cast<std::uint32_t>(size); }
  Channel& channel(int from, int to) { return segment->channels[static_cast<std::size_t>(from * kMaxRanks + to)]; }
  /// For all ranks, unless there is one already.
  void set_error(const std::string& text);
  std::string error() const;
};

struct Transfer {
  Signature signature;
  const void* from = nullptr;
  void* to = nullptr;
  int peer = 0;
};

/// One collective.
MakeOperation collective_operation(std::shared_ptr<Group> group, const Transfer& transfer);
/// Sends and receives of one group, all under way together.
MakeOperation exchange_operation(std::shared_ptr<Group> group, std::vector<Transfer> transfers);

/// An id that names a new segment; empty: the system refused.
std::string make_segment();
/// Attaches. Null: no such segment, or too many ranks.
std::shared_ptr<Group> join(const std::string& name, int rank, int size, bool blocking);

}  // namespace simt::nccl
