#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// How long an all_reduce of one root a rank takes, by transport and size.
struct TransportTimes {
  std::vector<std::size_t> sizes;            // bytes of the sum, ascending
  std::vector<std::string> transports;       // what these ranks can use
  std::vector<std::vector<double>> seconds;  // [transports][sizes], of the slowest rank; 0: not measured, it would take too long
  std::string table;                         // between GPUs: the file for --comm-tuning
};

/// One root a rank, added as docs/numerics.md, N2, says for that many leaves.
TreeSum one_root_each(int ranks);

/// Makes `calls` calls of an all_reduce of `count` floats, and returns the seconds that they took on this rank.
using TimeCalls = std::function<double(std::size_t count, int calls)>;

/// Seconds of one call by size, on the slowest rank. A size for which a call takes a quarter of a second is the last one. Collective: every
/// rank gets the same answer.
std::vector<double> measure_sizes(Communicator& host, std::span<const std::size_t> sizes, const TimeCalls& time_calls);

/// Those of `communicator` itself, about host memory. Collective.
TransportTimes measure_transport(Communicator& communicator, const std::vector<std::size_t>& sizes);

}  // namespace lockstep::comm
