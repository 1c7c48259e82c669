#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/isa.h"
#include "device/selection.h"

namespace lockstep::device {

/// The keys (candidate_key) of the first ids in the order of candidates, in no order of their own: at least `count`, at most `most`. The
/// vocabulary is never sorted. NaNs may be left out. Overwrites `keys`, keeping its capacity. @pre count <= most
/// @param maxima  of the groups of the row (row_sketch.h): only those that have candidates are looked at. Empty: one pass over all.
void first_candidates(std::span<const float> logits, std::size_t count, std::size_t most, std::span<const float> maxima, Isa isa,
                      std::vector<std::uint64_t>& keys);

}  // namespace lockstep::device
