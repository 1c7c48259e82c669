#pragma once

#include <chrono>
#include <cstddef>

namespace lockstep::comm {

/// What every rank of a communicator must give alike.
struct CommunicatorOptions {
  /// A rank that is later than this in a collective is named in a CommError on every rank.
  std::chrono::milliseconds deadline{60'000};
  /// Room for one rank's part of a message; larger messages go in pieces. Two slots per rank are held.
  std::size_t slot_bytes = std::size_t{512} << 10;
  /// An all_reduce of up to so many values is summed in full by every rank; beyond it, every rank sums a slice and the slices are gathered.
  std::size_t direct_values = std::size_t{16} << 10;
};

inline constexpr std::size_t min_slot_bytes = std::size_t{4} << 10;

/// @throws std::invalid_argument that names the option and its value.
void check_options(const CommunicatorOptions& options, int size);

}  // namespace lockstep::comm
