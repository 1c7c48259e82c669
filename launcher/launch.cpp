#include "launcher/launch.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "launcher/child_process.h"
#include "launcher/mpirun.h"
#include "launcher/supervisor.h"

namespace lockstep::launcher {
namespace {

std::optional<int> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != 0 || value < 0)
    throw UsageError(fmt::format("the environment variable {} is '{}', not a number", name, text));
  return value;
}

int num_usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

RankEnvironment rank_environment(const Environment& environment) {
  struct Names {
    const char* size;
    const char* rank;
    const char* started_by;
  };
  // A SLURM batch script sees SLURM_NTASKS and SLURM_PROCID too without being a rank, so the variable of a job step is asked for.
  constexpr Names kKnown[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
                              {"PMI_SIZE", "PMI_RANK", "mpirun"},
                              {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"}};
  for (const Names& names : kKnown) {
    const auto size = number(environment, names.size);
    const auto rank = number(environment, names.rank);
    if (!size || !rank) continue;
    if (*rank >= *size)
      throw UsageError(fmt::format("the environment contradicts itself: {} is {}, {} is {}", names.rank, *rank, names.size, *size));
    return {*rank, *size, names.started_by};
  }
  return {};
}

bool must_launch(const RunConfig& config, const RankEnvironment& ranks) {
  const bool runs_ranks = config.subcommand != Subcommand::kInspect;
  return runs_ranks && ranks.size == 0 && config.tensor_parallel_size > 1 && config.comm != "threads";
}

std::vector<std::string> resuming_arguments(std::span<const std::string> arguments) {
  std::vector<std::string> resuming;
  for (const std::string& argument : arguments) {
    if (argument != "--overwrite" && argument != "--resume") resuming.push_back(argument);
  }
  resuming.insert(resuming.end(), {"--no-overwrite", "--resume"});
  return resuming;
}

int launch(const RunConfig& config, const std::string& program, std::span<const std::string> arguments, const Environment& environment,
           Terminal& terminal, spdlog::logger& log) {
  const char* mpirun = environment("LOCKSTEP_MPIRUN");
  std::vector<std::string> ranks_run = {program};
  ranks_run.insert(ranks_run.end(), arguments.begin(), arguments.end());
  const bool resumable =
      config.subcommand == Subcommand::kBatch || (config.subcommand == Subcommand::kScore && config.perplexity_file.empty());
  for (std::int64_t attempt = 0;; ++attempt) {
    const PrivateFolder folder;
    SupervisorOptions options;
    options.num_ranks = static_cast<int>(config.tensor_parallel_size);
    options.command = mpirun_command({.mpirun = mpirun != nullptr && *mpirun != 0 ? mpirun : "mpirun",
                                      .num_ranks = options.num_ranks,
                                      .num_cores = num_usable_cores(),
                                      .root = geteuid() == 0,
                                      .temporary_folder = folder.path()},
                                     ranks_run);
    options.socket_path = folder.path() + "/control";
    options.collective_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.collective_timeout * 1000.0));
    const int exit_code = supervise(options, terminal, log);
    if (exit_code != 1 || attempt >= config.restarts || !resumable) return exit_code;
    log.warn("starting again where it stopped, try {} of {}", attempt + 1, config.restarts);
    const std::vector<std::string> resuming = resuming_arguments(arguments);
    ranks_run.assign(1, program);
    ranks_run.insert(ranks_run.end(), resuming.begin(), resuming.end());
  }
}

}  // namespace lockstep::launcher
