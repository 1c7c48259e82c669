#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace lockstep::engine {

/// Reductions over a vocabulary in one fixed order (docs/numerics.md, N6): segments of 16 ids, each summed as a full binary tree (ids past
/// the end add 0), then one binary tree over the segments, in which a range of n splits after the largest power of two below n. So a rank
/// that owns whole segments can compute its part.

/// The largest value. @pre values is not empty and all are finite.
float maximum(std::span<const float> values);

/// Sum of exp((value - maximum) * scale), in fp64, over all values. Terms below exp(-708), and values of -infinity, count as 0.
double sum_of_exponentials(std::span<const float> values, float maximum, double scale);

/// The same sum where every id but the given ones is masked, i.e. adds exactly 0. Ids ascending, with their weights.
double sum_of_weights(std::span<const std::pair<std::uint32_t, double>> weights, std::size_t vocab_size);

/// One term of those sums. @pre value <= maximum, scale > 0
double weight_of(float value, float maximum, double scale);

}  // namespace lockstep::engine
