#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <spdlog/logger.h>

#include "launcher/terminal.h"

namespace lockstep::launcher {

struct SupervisorOptions {
  std::vector<std::string> command;  // starts all ranks: mpirun and its arguments
  std::string socket_path;           // where to listen; given to the ranks as LOCKSTEP_CONTROL
  int num_ranks = 1;
  std::chrono::milliseconds collective_timeout{120'000};  // how long a rank may be silent, or all of them stand still within a step
};

/// Runs a job of several ranks and watches it to its end: starts the command, shows what ranks write and how far they are, passes signals
/// on, and names the rank that died, failed or is stuck, with where each stands. Returns the exit code of the program: the ranks' own; 1 if
/// one of them died; 128 + signal if a signal ended the job.
///
/// The first SIGINT, SIGTERM or SIGHUP asks the ranks to stop, the second kills them. When a rank dies the others get kAbortGrace to fail
/// by themselves and are then killed. When this returns no process of the job is left; when this process itself is killed, ranks see their
/// control connection close and exit.
///
/// To be called while the process has one thread. @throws std::runtime_error if the command can not be started.
int supervise(const SupervisorOptions& options, Terminal& terminal, spdlog::logger& log);

constexpr std::chrono::milliseconds kAbortGrace{400};    // until ranks are killed
constexpr std::chrono::milliseconds kReaperGrace{1400};  // until the command is

}  // namespace lockstep::launcher
