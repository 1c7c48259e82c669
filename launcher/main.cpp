#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "launcher/cli.h"
#include "launcher/launch.h"
#include "launcher/log.h"
#include "launcher/version.h"

namespace {

using namespace lockstep::launcher;

/// The file that this process runs: what mpirun has to start, whatever the current folder and PATH are.
std::string own_program() { return "/proc/self/exe"; }

int run(const std::vector<std::string>& arguments, const Environment& environment, Terminal& terminal, spdlog::logger& log) {
  const CommandLine command = parse_command_line(arguments, environment);
  if (command.help || command.version) {
    std::fputs((command.help ? *command.help : version_text()).c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  const RankEnvironment ranks = rank_environment(environment);
  if (must_launch(command.config, ranks)) return launch(command.config, own_program(), arguments, environment, terminal, log);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto terminal = std::make_shared<Terminal>(2);
  const auto log = make_logger(terminal, std::nullopt, "info");
  try {
    return run(
        {argv + 1, argv + argc}, [](const char* name) { return std::getenv(name); }, *terminal, *log);
  } catch (const UsageError& error) {
    log->error("{}", error.what());
    return 2;
  } catch (const std::exception& error) {
    log->error("{}", error.what());
    return 1;
  }
}
