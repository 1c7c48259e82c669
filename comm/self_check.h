#pragma once

#include <chrono>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Tries the transport before anything depends on it: small sums and a gather, whose results every rank knows in advance. Collective; takes
/// microseconds. Returns the time of one tiny all_reduce, the best of several.
/// @throws CommError with the communicator's reason (which names a rank that is late or dead) and what usually stands behind such trouble:
/// the size of /dev/shm, the choice of network interface, two MPI installations.
std::chrono::nanoseconds check_transport(Communicator& communicator);

}  // namespace lockstep::comm
