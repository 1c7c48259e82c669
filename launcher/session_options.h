#pragma once

#include "device/cpu/isa.h"
#include "engine/sampling/params.h"
#include "engine/session.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// That of LOCKSTEP_ISA, else the best of this machine. @throws UsageError if there is none of this name.
device::Isa instruction_set(const RunConfig& config);

/// --dtype: absent for "auto".
std::optional<device::DType> weight_dtype(const RunConfig& config);

/// What the engine is to do, of what the user asked for. `local_ranks`: ranks that share this machine's memory; without --kv-cache-memory
/// each takes its part of a quarter of what is free, at most 4 GiB; with `device_has_memory` the budget is what the device has left.
/// @throws UsageError that names the flag.
engine::SessionOptions session_options(const RunConfig& config, std::size_t local_ranks, bool device_has_memory);

}  // namespace lockstep::launcher
