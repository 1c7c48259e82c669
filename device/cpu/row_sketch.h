#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/isa.h"

namespace lockstep::device {

/// Of every chunk of so many ids 16 groups are known by their largest logit: those whose ids are equal modulo 16.
inline constexpr std::size_t kSketchChunk = 256, kSketchLanes = 16;

/// The mass of a sketch is off by at most this part of the sum over the whole vocabulary. Per term: v - maximum rounded once (at most 40 *
/// 2^-24 of a term that matters: those below e^-40 do not), the polynomial and its roundings (5e-7), sums of 256 (3e-7).
inline constexpr double kMassError = 0x1p-17;

/// What one cheap pass over a row, or over a rank's part of one, tells: enough to find its first candidates without looking at all of it
/// again, and to decide nearly every draw as the exact sum (vocabulary_sum.h) would.
struct RowSketch {
  std::vector<float> maxima;  // [chunks][16]; the last chunk may be short: -infinity where a group has no id
  double mass = 0.0;          // about the sum of exp((value - maximum) * scale)
};

/// What a selection says of a row (SelectionLayout): its changed logits are finite or masked; its mass is that of a sketch.
inline constexpr std::uint32_t kIsFinite = 1, kIsSketched = 2;

/// Whether kMassError holds for exponentials of this scale.
bool can_sketch_mass(double scale);

/// @param maximum  of the whole vocabulary
/// @param scale    0: only the maxima are wanted. @pre can_sketch_mass(scale)
void sketch_row(std::span<const float> values, float maximum, double scale, Isa isa, RowSketch& sketch);

}  // namespace lockstep::device
