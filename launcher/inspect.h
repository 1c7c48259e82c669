#pragma once

#include <string>

#include "launcher/run_config.h"

namespace lockstep::launcher {

/// `lockstep inspect`: what a model is and how it would be cut, from its headers alone. Returns the text for standard output.
/// @throws std::runtime_error or std::invalid_argument with one sentence for the user.
std::string inspect(const RunConfig& config);

}  // namespace lockstep::launcher
