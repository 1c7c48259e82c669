#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/device.h"

/// What mixtures of experts need beside products: the choice of experts, and the rows that go to one.
namespace lockstep::device::cpu {

/// The weights of all experts for one token; 0 where an expert is not chosen. Logits that are not finite make every weight NaN, so that the
/// fault shows. `scratch` holds as many floats.
void route_row(const Kernels& kernels, std::span<const float> logits, const Routing& routing, std::span<float> weights,
               std::span<float> scratch);

/// Row i of `to` = row rows[i] of `from`; both kFloat32 or both kInt8Blocks, as many columns.
void gather_rows(const Matrix& from, std::span<const std::uint32_t> rows, const Matrix& to);

}  // namespace lockstep::device::cpu
