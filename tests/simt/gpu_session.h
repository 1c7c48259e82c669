#pragma once

#include "comm/cuda/plugin.h"
#include "tests/simt/simt.h"
#include "tests/support/session_run.h"

extern "C" const lockstep::comm::CudaPlugin* lockstep_cuda_plugin();

namespace lockstep::test {

/// A run on emulated GPUs, one a rank: the program's own plug-in entry, linked in.
inline RunSetup on_gpus(RunSetup setup, bool graphs = true, bool fast = false) {
  setup.open_rank = [graphs, fast](comm::Communicator& host) {
    return lockstep_cuda_plugin()->open_rank(
        host, {.local_rank = host.rank(), .local_size = host.size(), .graphs = graphs, .fast = fast, .deadline = std::chrono::seconds(60)});
  };
  return setup;
}

}  // namespace lockstep::test
