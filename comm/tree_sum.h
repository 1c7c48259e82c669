#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Memory of tree_sum, kept between calls.
struct TreeScratch {
  std::vector<float> sums;            // [roots, block]
  std::vector<const float*> current;  // [roots]
};

/// out[i] = the tree's sum over roots[r][i]: plain fp32 additions, merges in order, nothing added but what the tree says (so -0 stays -0).
/// `roots` are the roots of all ranks, in order. `out` may be the same memory as one of the roots, but must not overlap one otherwise.
/// Reads 4 * count * roots bytes and writes 4 * count; count * (roots - 1) additions.
void tree_sum(const TreeSum& tree, std::span<const float* const> roots, float* out, std::size_t count, TreeScratch& scratch);

/// The number of roots of all ranks.
std::size_t total_roots(const TreeSum& tree);

/// Empty if `tree` is a whole tree for `size` ranks; otherwise what is wrong with it.
std::string tree_error(const TreeSum& tree, int size);

}  // namespace lockstep::comm
