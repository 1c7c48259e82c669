#pragma once

#include <memory>
#include <optional>
#include <string>

#include <spdlog/logger.h>

#include "launcher/terminal.h"

namespace lockstep::launcher {

/// A logger onto the terminal: "[rank 2] warning: text", one write() a message. Without a rank (one process, or the launcher) the prefix is
/// "lockstep: ". `level` is one of debug, info, warning, error.
std::shared_ptr<spdlog::logger> make_logger(std::shared_ptr<Terminal> terminal, std::optional<int> rank, const std::string& level);

}  // namespace lockstep::launcher
