#pragma once

#include <memory>

#include "device/cpu/isa.h"
#include "device/device.h"

namespace lockstep::test {

/// A CPU device in exact arithmetic whose products read activations rounded to `type` (kFloat16 or kBFloat16), as those of a GPU do: what
/// rounding alone does to the logits. Weights must be F32.
std::unique_ptr<device::Device> make_rounding_device(device::Activation type, device::Isa isa);

}  // namespace lockstep::test
