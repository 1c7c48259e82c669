#pragma once

#include <chrono>
#include <cstddef>

namespace lockstep::comm {

/// What every rank of a communicator must give alike (but own_processors).
struct CommunicatorOptions {
  /// A rank that is later than this in a collective is named in a CommError on every rank. It must be longer than any work between two
  /// calls, loading included.
  std::chrono::milliseconds deadline{60'000};
  /// Room for one rank's part of a message; larger messages go in pieces. Two slots per rank are held.
  std::size_t slot_bytes = std::size_t{512} << 10;
  /// An all_reduce is cut in slices, one per rank, when that saves each rank more than so many additions; else every rank adds up the
  /// whole.
  std::size_t slice_from_additions = 2048;
  /// No other thread of the job needs the processor of a rank that waits, so it may look for long before it sleeps.
  bool own_processors = false;
};

inline constexpr std::size_t min_slot_bytes = std::size_t{4} << 10;

/// @throws std::invalid_argument that names the option and its value.
void check_options(const CommunicatorOptions& options, int size);

}  // namespace lockstep::comm
