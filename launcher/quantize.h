#pragma once

#include <string_view>

#include "engine/quantise/quantise_model.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// `lockstep quantize IN OUT`: turns a model into a GGUF file, and prints a line for each tensor as it is done, then a summary; with
/// --perplexity how well the model before and the file after predict a text, on the CPU. `print` writes to standard output. @throws
/// std::runtime_error with one sentence for the user.
void quantize(const RunConfig& config, void (*print)(std::string_view));

}  // namespace lockstep::launcher
