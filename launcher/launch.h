#pragma once

#include <span>
#include <string>

#include <spdlog/logger.h>

#include "launcher/cli.h"
#include "launcher/run_config.h"
#include "launcher/terminal.h"

namespace lockstep::launcher {

/// The place of this process in a job, as the environment that mpirun, or srun, gave it says. Size 0: it was not started as a rank.
struct RankEnvironment {
  int rank = 0;
  int size = 0;
  std::string started_by;  // "mpirun", "srun": for messages
};

/// Reads the variables of Open MPI, PMI (MPICH and its kin) and SLURM job steps.
RankEnvironment rank_environment(const Environment& environment);

/// Whether this process has to start the ranks itself: several of them are wanted as processes, and it is not one already.
bool must_launch(const RunConfig& config, const RankEnvironment& ranks);

/// Starts `program arguments...` as config.tensor_parallel_size ranks under mpirun (LOCKSTEP_MPIRUN, or the one in PATH) and watches them
/// to the end. A job that fails is started again, with --resume, up to config.restarts times. Returns the exit code. To be called while
/// the process has one thread.
int launch(const RunConfig& config, const std::string& program, std::span<const std::string> arguments, const Environment& environment,
           Terminal& terminal, spdlog::logger& log);

/// The arguments of a run that goes on where one with these stopped: --overwrite is gone, --resume is there.
std::vector<std::string> resuming_arguments(std::span<const std::string> arguments);

}  // namespace lockstep::launcher
