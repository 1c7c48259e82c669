#pragma once

#include <vector>

#include "device/cuda/kernels/linear_layout.cuh"
#include "device/device.h"

namespace lockstep::device::cuda {

/// How the kernels walk over the columns of a weight: a function of its leaves alone, so that a leaf has the same bits in every share.
struct SlicePlan {
  std::vector<Slice> slices;
  std::uint32_t num_units = 0;   // of a panel; F32: columns
  std::uint32_t num_levels = 0;  // sums that are open below the one that is computed
  std::uint32_t num_roots = 0;
  bool leaves_are_vectors = false;  // every leaf ends at a multiple of 8 columns: activations can be read in vectors of 16 bytes
};

/// More of them have no room in shared memory; a tree over up to 128 leaves has no more.
inline constexpr std::uint32_t kMaxLevels = 7;

/// Slices of a leaf (mma family): one for every 4 units of 32 columns, at least 1 and at most 8, as even as possible.
/// @throws std::invalid_argument that names the weight and what is wrong with its leaves or sizes.
SlicePlan plan_slices(const WeightSpec& spec);

}  // namespace lockstep::device::cuda
