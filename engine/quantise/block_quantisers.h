#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/dtype.h"

namespace lockstep::engine {

/// The types that quantise() writes: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K.
bool can_quantise_to(device::DType dtype);

/// Writes `values` as `dtype`, a pure function of them. For device::dequantise of what is written:
/// - F16, BF16: rounded to nearest even.
/// - Q8_0: scale = max|x| / 127 in F16, then the nearest quants. Q4_0: scale = x / -8 for the x of largest magnitude, then the nearest
/// quants.
/// - Q4_K, Q6_K: scale (and minimum) of each part by least squares over candidates of quants; scale of the super-block from the largest,
/// its
///   parts' scales with their neighbours tried, each with the nearest quants: docs/weights.md.
/// @pre values.size() is a whole number of blocks, `to` has row_bytes of them. @throws std::runtime_error if a value is not finite or too
/// large for the type.
void quantise(device::DType dtype, std::span<const float> values, std::span<std::byte> to);

}  // namespace lockstep::engine
