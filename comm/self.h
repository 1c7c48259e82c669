#pragma once

#include <memory>

#include "comm/communicator.h"

namespace lockstep::comm {

/// The communicator of one rank alone: nothing travels, and abort() makes its later calls throw.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace lockstep::comm
