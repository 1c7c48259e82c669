#pragma once

#include <cstddef>
#include <vector>

#include "engine/model/spec.h"

namespace lockstep::engine {

/// cos and sin of the rotary angles, [num_positions, rotary_dim / 2] each: a pure function of the position (docs/numerics.md, N5).
/// Angles are fp32 products of position and frequency, as in the reference; cos and sin are our own (N4).
struct RotaryAngles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

/// theta^(-2i / rotary_dim), i = 0 .. rotary_dim / 2 - 1.
std::vector<float> rotary_frequencies(const RopeSpec& rope);
RotaryAngles rotary_angles(const RopeSpec& rope, std::size_t num_positions);

}  // namespace lockstep::engine
