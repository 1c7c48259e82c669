#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launcher/options.h"

namespace lockstep::launcher {

/// Applies a TOML configuration: one key an option, named as its flag (underscores or dashes), at the top level. Keys of other subcommands
/// are checked and stored as well, so that one file serves all.
/// @throws UsageError that names the file, the line and the key: bad syntax, an unknown key (with the nearest known one), a value of the
/// wrong kind or range; also a line with more than 512 dots.
void apply_config_text(std::string_view toml, const std::string& file_name, std::span<const Option> options, RunConfig& config);

/// The same for a file. @throws UsageError also if it can not be read, or is larger than 1 MiB.
void apply_config_file(const std::string& path, std::span<const Option> options, RunConfig& config);

}  // namespace lockstep::launcher
