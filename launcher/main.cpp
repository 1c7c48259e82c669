#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launcher/build_identity.h"
#include "launcher/cli.h"
#include "launcher/inspect.h"
#include "launcher/launch.h"
#include "launcher/log.h"
#include "launcher/quantize.h"
#include "launcher/rank.h"
#include "launcher/subcommands.h"

namespace lockstep::launcher {
namespace {

/// The file that this process runs: what mpirun has to start, whatever the current folder and PATH are.
std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

int run(const std::vector<std::string>& arguments, const Environment& environment, const std::shared_ptr<Terminal>& terminal,
        spdlog::logger& log) {
  const CommandLine command = parse_command_line(arguments, environment);
  if (command.help || command.version) {
    print(command.help ? *command.help : version_text());
    return 0;
  }
  const RunConfig& config = command.config;
  const RankEnvironment ranks = rank_environment(environment);
  if (config.subcommand == Subcommand::kInspect) {
    if (ranks.rank == 0) print(inspect(config));
    return 0;
  }
  if (config.subcommand == Subcommand::kQuantize) {
    if (ranks.rank == 0) quantize(config, print);
    return 0;
  }
  if (!must_launch(config, ranks)) return run_ranks(config, ranks, environment, terminal);
  check_files(config);  // before any rank starts
  return launch(config, own_program(), arguments, environment, *terminal, log);
}

/// Whether this process is to tell what every rank would tell.
bool is_spokesman(const Environment& environment) {
  try {
    return rank_environment(environment).rank == 0;
  } catch (const UsageError&) {
    return true;
  }
}

int run_program(const std::vector<std::string>& arguments) {
  const auto terminal = std::make_shared<Terminal>(2);
  const auto log = make_logger(terminal, std::nullopt, "info");
  const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
  int exit_code = 2;  // nothing was started: what is wrong is in what the user gave
  try {
    exit_code = run(arguments, environment, terminal, *log);
  } catch (const std::exception& error) {
    if (is_spokesman(environment)) log->error("{}", error.what());
  }
  return exit_code;
}

}  // namespace
}  // namespace lockstep::launcher

int main(int argc, char** argv) { return lockstep::launcher::run_program({argv + 1, argv + argc}); }
