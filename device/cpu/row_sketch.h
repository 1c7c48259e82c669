#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "device/cpu/isa.h"
#include "device/cpu/vocabulary_sum.h"

namespace lockstep::device {

/// What one cheap look at a row of logits, or at a part of one, tells: enough to find its first candidates without reading all of it again,
/// and to decide nearly every draw as the exact sum (vocabulary_sum.h) would. Of every group of so many ids the largest logit is kept; a
/// cache line holds a group, and the rows of a panel of weights are one.
inline constexpr std::size_t kSketchGroup = 16;

/// A part is looked at twice, so it is best no longer than what the first level of cache holds.
inline constexpr std::size_t kSketchPart = 4096;

/// The mass of a sketch is off by at most this part of the sum that it stands for. Per term: the factor of the exponent and the exponent
/// rounded once (each at most 41 * 2^-24 of a term that matters: those below e^-40 of the part's largest do not), the polynomial and its
/// roundings (2.7e-6), sums of 256 (3e-7); the parts are put together in fp64. All terms are positive, so what holds for each part holds
/// for all together, whichever maximum each is relative to.
inline constexpr double kMassError = 0x1p-16;

/// The largest of some logits, and about the sum of exp((logit - maximum) * scale) over them.
struct SketchedMass {
  float maximum = -std::numeric_limits<float>::infinity();  // nothing, or nothing that is not masked
  double mass = 0.0;

  /// The same sum relative to a maximum that is not lower. @pre scale > 0
  double relative_to(float higher, double scale) const { return mass == 0.0 ? 0.0 : mass * weight_of(maximum, higher, scale); }
  /// Takes in what stands beside it. @param scale  0: masses are not wanted
  void add(const SketchedMass& other, double scale) {
    const float higher = other.maximum > maximum ? other.maximum : maximum;
    if (scale != 0.0) mass = relative_to(higher, scale) + other.relative_to(higher, scale);
    maximum = higher;
  }
};

/// What a selection says of a row (SelectionLayout): its changed logits are finite or masked; its mass is that of a sketch; and in the bits
/// above, how many of its candidates were left out, since the others cover enough.
inline constexpr std::uint32_t kIsFinite = 1, kIsSketched = 2, kLeftOutShift = 2;

/// Whether kMassError holds for exponentials of this scale.
bool can_sketch_mass(double scale);

struct SketchedPart {
  SketchedMass mass;
  bool finite = true;  // all values; if not, the rest is of no use
};

/// Sketches one part of a row, at most kSketchPart values for speed.
/// @param scale    0: only the maxima are wanted. @pre can_sketch_mass(scale)
/// @param maxima   [groups] of them, the last may be short. A NaN may be passed over.
/// @param next     where as many values will be read next, or null
SketchedPart sketch_part(std::span<const float> values, double scale, Isa isa, float* maxima, const float* next = nullptr);

}  // namespace lockstep::device
