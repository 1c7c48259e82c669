#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include <sys/types.h>

#include "launcher/control_protocol.h"

namespace lockstep::launcher {

/// What the launcher knows of a rank.
struct Rank {
  using Clock = std::chrono::steady_clock;
  enum class State { kAbsent, kRunning, kSaidBye, kGone };
  State state = State::kAbsent;
  pid_t pid = 0;
  std::optional<int> exit_code;
  control::At at;
  Clock::time_point last_heard;
  Clock::time_point last_moved;
};

/// "step 12, layer 3 down_proj".
std::string place(const Rank& rank);

/// Which rank of a job that began at `started` holds it up, in one sentence: it did not start, was not heard from, or stands still with all
/// others in a step. `timeout`: for how long a rank may be silent, or all of them stand still.
std::optional<std::string> stall_of(std::span<const Rank> ranks, Rank::Clock::time_point now, Rank::Clock::time_point started,
                                    std::chrono::milliseconds timeout);

}  // namespace lockstep::launcher
