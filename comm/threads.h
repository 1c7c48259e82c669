#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/options.h"

namespace lockstep::comm {

/// Communicators of `size` ranks that are threads of this process, one for each. A rank whose communicator is destroyed has left: peers
/// that wait for it throw.
/// @throws std::invalid_argument for bad options.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size, const CommunicatorOptions& options = {});

}  // namespace lockstep::comm
