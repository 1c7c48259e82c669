#pragma once

#include <memory>

#include "launcher/cli.h"
#include "launcher/launch.h"
#include "launcher/run_config.h"
#include "launcher/terminal.h"

namespace lockstep::launcher {

/// Runs this process's part of the job, as the rank that `ranks` says: one alone, one of several under MPI, or all of them as threads
/// (--comm threads). Returns the exit code, the same on every rank; where MPI can no longer be left in order, the process ends here.
///
/// Errors are told once: by rank 0 in what every rank would say, else by the rank that met them.
int run_ranks(const RunConfig& config, const RankEnvironment& ranks, const Environment& environment,
              const std::shared_ptr<Terminal>& terminal);

}  // namespace lockstep::launcher
