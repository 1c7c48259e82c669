#include "engine/runtime/rotary.h"

#include "device/portable_math.h"

namespace lockstep::engine {

namespace portable = device::portable;

std::vector<float> rotary_frequencies(const RopeSpec& rope) {
  std::vector<float> frequencies(rope.rotary_dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    frequencies[i] = 1.0f / static_cast<float>(portable::pow(rope.theta, exponent));
  }
  return frequencies;
}

RotaryAngles rotary_angles(const RopeSpec& rope, std::size_t num_positions) {
  const std::vector<float> frequencies = rotary_frequencies(rope);
  RotaryAngles angles;
  angles.cosines.reserve(num_positions * frequencies.size());
  angles.sines.reserve(num_positions * frequencies.size());
  for (std::size_t position = 0; position < num_positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      angles.cosines.push_back(static_cast<float>(portable::cos(angle)));
      angles.sines.push_back(static_cast<float>(portable::sin(angle)));
    }
  }
  return angles;
}

}  // namespace lockstep::engine
