#include "engine/runtime/rotary.h"

#include <algorithm>

#include "device/portable_math.h"

namespace lockstep::engine {
namespace {

namespace portable = device::portable;

void add_row(const parallel::Rotary& rotary, const std::vector<float>& frequencies, std::size_t position, RotaryAngles& angles) {
  for (const float frequency : frequencies) {
    const float angle = static_cast<float>(position) * frequency;
    angles.cosines.push_back(static_cast<float>(portable::cos(angle)) * rotary.factor);
    angles.sines.push_back(static_cast<float>(portable::sin(angle)) * rotary.factor);
  }
}

}  // namespace

std::vector<float> frequencies_for(const parallel::Rotary& rotary, std::size_t length) {
  if (!rotary.depends_on_length() || length <= rotary.long_from) return rotary.frequencies;
  if (!rotary.long_frequencies.empty()) return rotary.long_frequencies;
  const double dim = static_cast<double>(rotary.dim);
  const double stretch = rotary.growth * static_cast<double>(length) / static_cast<double>(rotary.long_from) - (rotary.growth - 1.0);
  const double base = rotary.growing_base * portable::pow(stretch, dim / (dim - 2.0));
  std::vector<float> frequencies(rotary.dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary.dim);
    frequencies[i] = 1.0f / static_cast<float>(portable::pow(base, exponent));
  }
  return frequencies;
}

RotaryAngles rotary_angles(const parallel::Rotary& rotary, std::size_t num_positions) {
  RotaryAngles angles;
  angles.cosines.reserve(num_positions * rotary.frequencies.size());
  angles.sines.reserve(num_positions * rotary.frequencies.size());
  for (std::size_t position = 0; position < num_positions; ++position) add_row(rotary, rotary.frequencies, position, angles);
  return angles;
}

void angles_of_tokens(const parallel::Rotary& rotary, const device::StepBatch& batch, RotaryAngles& angles) {
  angles.cosines.clear();
  angles.sines.clear();
  for (const device::StepBatch::Sequence& sequence : batch.sequences) {
    std::vector<float> frequencies;
    std::size_t known = 0;  // the length that they are for
    for (std::uint32_t i = 0; i < sequence.num_tokens; ++i) {
      const std::size_t position = sequence.first_position + i;
      const std::size_t length = std::max<std::size_t>(sequence.prompt_length, position + 1);
      if (length != known) frequencies = frequencies_for(rotary, length);
      known = length;
      add_row(rotary, frequencies, position, angles);
    }
  }
}

}  // namespace lockstep::engine
