#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::engine {

/// One super-block of 256 values as Q4_K (144 bytes) and Q6_K (210 bytes). @pre the values are finite.
void quantise_q4_k(std::span<const float, 256> values, std::byte* to);
void quantise_q6_k(std::span<const float, 256> values, std::byte* to);

/// `value` as F16. @throws std::runtime_error if it is beyond the range.
std::uint16_t checked_half(float value);

/// To nearest, ties to even. @pre |value| < 2^22.
inline float nearest_integer(float value) {
  constexpr float kShift = 0x1.8p23f;  // where the neighbours of a float are one apart
  return (value + kShift) - kShift;
}

}  // namespace lockstep::engine
