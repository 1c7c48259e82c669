#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "launcher/options.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// What the command line asks for: a run, or a text to print (help, or the version, which the caller knows).
struct CommandLine {
  RunConfig config;
  std::optional<std::string> help;
  bool version = false;
};

/// Looks up an environment variable: null if it is not set.
using Environment = std::function<const char*(const char*)>;

/// Parses the arguments behind the program's name: a subcommand and its flags (a dash or an underscore between words, `-tp 4`, `--seed=1`),
/// over the file of `--config`, over the defaults. The last use of a flag counts.
/// @throws UsageError that names the flag (for an unknown one the nearest known), or file, line and key.
CommandLine parse_command_line(std::span<const std::string> arguments, const Environment& environment);

}  // namespace lockstep::launcher
