#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// cos and sin of rows of angles: [rows, dim / 2] each. The pairs are (i, i + dim / 2) (docs/numerics.md, N5).
/// Angles are fp32 products of position and frequency, as in the reference; cos and sin are our own (N4).
struct RotaryAngles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

/// Those of a sequence of `length` tokens.
std::vector<float> frequencies_for(const parallel::Rotary& rotary, std::size_t length);

/// Of positions 0, 1, ... @pre they do not depend on the length.
RotaryAngles rotary_angles(const parallel::Rotary& rotary, std::size_t num_positions);

/// Of the tokens of a step, where they depend on the length: a token of the prompt is rotated for the length of the prompt, one behind it
/// for its own position + 1. So the angles are a function of prompt length and position alone.
void angles_of_tokens(const parallel::Rotary& rotary, const device::StepBatch& batch, RotaryAngles& angles);

}  // namespace lockstep::engine
