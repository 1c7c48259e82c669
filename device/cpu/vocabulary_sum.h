#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/isa.h"
#include "device/selection.h"

namespace lockstep::device {

/// Reductions over a vocabulary in one fixed order (docs/numerics.md, N6): segments of 16 ids, each summed as a full binary tree (ids past
/// the end add 0), then one binary tree over the segments, in which a range of n splits after the largest power of two below n. So a rank
/// that owns whole segments can compute its part.

/// Adds nodes of that tree that come in order, each of a power of two of segments, as a binary counter counts.
class TreeAdder {
 public:
  /// @pre the node begins where the one before it ends, at a multiple of its size
  void push(double value, std::size_t num_segments) {
    while (depth_ > 0 && sizes_[depth_ - 1] == num_segments) {
      value = values_[--depth_] + value;
      num_segments *= 2;
    }
    sizes_[depth_] = num_segments;
    values_[depth_++] = value;
  }
  /// The sum; the object is empty then.
  double finish() {
    if (depth_ == 0) return 0.0;
    double value = values_[--depth_];
    while (depth_ > 0) value = values_[--depth_] + value;
    return value;
  }

 private:
  std::array<double, 64> values_;  // sizes descending
  std::array<std::size_t, 64> sizes_;
  std::size_t depth_ = 0;
};

/// The largest value; a zero of either sign where that is 0. @pre values is not empty and has no NaN.
float maximum(std::span<const float> values, Isa isa);

/// Sum of exp((value - maximum) * scale), in fp64, over all values. Terms below exp(-708), and values of -infinity, count as 0.
double sum_of_exponentials(std::span<const float> values, float maximum, double scale, Isa isa);

/// The same sum where every id but the given ones is masked, i.e. adds exactly 0. Ids ascending, with their weights.
double sum_of_weights(std::span<const std::pair<std::uint32_t, double>> weights, std::size_t vocab_size);

/// One term of those sums. @pre value <= maximum, scale > 0
double weight_of(float value, float maximum, double scale);

}  // namespace lockstep::device
