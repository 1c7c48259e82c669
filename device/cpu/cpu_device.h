#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "device/cpu/crew.h"
#include "device/cpu/isa.h"
#include "device/device.h"

namespace lockstep::device {

struct CpuOptions {
  std::size_t num_threads = 1;               // the calling thread included; see placement.h
  Isa isa = supported_isas().back();         // the best of this machine by default
  std::vector<std::vector<int>> processors;  // [num_threads]: where each thread may run, the calling one too; empty: anywhere
  bool own_processors = false;               // no other thread of the job needs the processor of a waiting one: placement.h
  std::optional<cpu::Walk> walk;             // for tests: every step so (crew.h), helpers leaving whenever they may. Else by their times
};

/// A device on the processors of this process. Threads start here and end with the device; no step allocates once buffers have grown to its
/// sizes. The answer does not depend on the options, not in one bit. Its layout of weights does: a weight belongs to the device that loaded
/// it.
/// @throws std::invalid_argument for no thread, std::runtime_error for an instruction set that the machine lacks.
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options);

/// What its activation_for() says, for plans of which no device is at hand: int8 blocks for block-quantised weights, else floats.
Activation cpu_activation_for(DType weight);

}  // namespace lockstep::device
