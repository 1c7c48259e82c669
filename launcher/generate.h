#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "engine/session.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// `lockstep generate`, on rank 0: one prompt, its answers to `write` (standard output). Dumps go to the files that the flags name.
/// False if `stop` became true before the answer was complete.
/// @throws UsageError for what the user must change.
bool generate(const RunConfig& config, engine::Session& session, const std::function<void(std::string_view)>& write,
              const std::atomic<bool>& stop);

}  // namespace lockstep::launcher
