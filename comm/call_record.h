#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace lockstep::comm {

enum class Operation : std::uint32_t { none, all_reduce, all_gather, gather, broadcast, barrier };

/// One collective call as a rank sees it. It travels with the call's data, so that ranks whose calls differ find out at once.
struct CallRecord {
  Operation operation = Operation::none;
  std::uint32_t root = 0;
  std::uint64_t size = 0;    // values (all_reduce) or bytes of all ranks together
  std::uint64_t layout = 0;  // digest of the tree, or of bytes_per_rank
  bool operator==(const CallRecord&) const = default;
};

CallRecord all_reduce_record(const TreeSum& tree, std::size_t count);
CallRecord gather_record(Operation operation, std::span<const std::size_t> bytes_per_rank, int root);
CallRecord broadcast_record(std::size_t bytes, int root);
CallRecord barrier_record();

/// As in "all_reduce of 576 values (2304 bytes)".
std::string describe(const CallRecord& record);
std::string describe_mismatch(int rank_a, const CallRecord& a, int rank_b, const CallRecord& b);

/// What is wrong with a gather's arguments on this rank; empty if nothing. `receives`: this rank's `all` must hold everything.
std::string gather_error(std::span<const std::byte> mine, std::span<const std::byte> all, std::span<const std::size_t> bytes_per_rank,
                         int rank, int size, bool receives);

}  // namespace lockstep::comm
