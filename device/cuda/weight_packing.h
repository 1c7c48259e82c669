#pragma once

#include <cstddef>
#include <span>

#include "device/cuda/slice_plan.h"

/// Puts rows of a weight into the order of kernels/linear_layout.cuh, in host memory.
namespace lockstep::device::cuda {

std::size_t panel_bytes(const WeightSpec& spec, const SlicePlan& plan);

/// @param stored up to 32 rows as a file has them, row_bytes(dtype, columns) each
/// @param panel panel_bytes(); rows that are missing become zeros
void pack_panel(const WeightSpec& spec, const SlicePlan& plan, std::span<const std::byte> stored, std::span<std::byte> panel);

}  // namespace lockstep::device::cuda
