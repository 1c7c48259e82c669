#pragma once

#include "engine/runtime/plan_channel.h"
#include "engine/runtime/step_runner.h"

namespace lockstep::engine {

/// What the ranks above 0 do: receive a plan, run it, until rank 0 says that it is over. Returns the number of plans at an orderly end.
/// @throws std::runtime_error with rank 0's reason if it aborted the job, or if a plan is malformed or out of order; and what receiver and
/// runner throw.
std::uint64_t serve(PlanReceiver& receiver, StepRunner& runner);

}  // namespace lockstep::engine
