#include "comm/tree_sum.h"

#include <algorithm>
#include <numeric>

namespace lockstep::comm {
namespace {

constexpr std::size_t block_values = 256;  // the block of every root stays in the first-level cache

// Two loops, each free of aliasing, so that the compiler vectorises both.
void add(float* __restrict out, const float* __restrict a, const float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}
void accumulate(float* __restrict out, const float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] += b[i];
}

}  // namespace

void tree_sum(const TreeSum& tree, std::span<const float* const> roots, float* out, std::size_t count, TreeScratch& scratch) {
  scratch.current.resize(roots.size());
  if (scratch.sums.size() < roots.size() * block_values) scratch.sums.resize(roots.size() * block_values);
  for (std::size_t begin = 0; begin < count; begin += block_values) {
    const std::size_t length = std::min(block_values, count - begin);
    for (std::size_t root = 0; root < roots.size(); ++root) scratch.current[root] = roots[root] + begin;
    for (std::size_t i = 0; i < tree.merges.size(); ++i) {
      const auto [into, from] = tree.merges[i];
      const bool last = i + 1 == tree.merges.size() && into == 0;
      float* sum = last ? out + begin : scratch.sums.data() + into * block_values;
      const float* a = scratch.current[into];
      const float* b = scratch.current[from];
      if (sum == a) {
        accumulate(sum, b, length);
      } else if (sum == b) {
        accumulate(sum, a, length);
      } else {
        add(sum, a, b, length);
      }
      scratch.current[into] = sum;
    }
    if (scratch.current[0] != out + begin) std::copy_n(scratch.current[0], length, out + begin);
  }
}

std::size_t total_roots(const TreeSum& tree) {
  return std::accumulate(tree.roots_per_rank.begin(), tree.roots_per_rank.end(), std::size_t{0});
}

std::string tree_error(const TreeSum& tree, int size) {
  if (tree.roots_per_rank.size() != static_cast<std::size_t>(size)) {
    return "the tree is for " + std::to_string(tree.roots_per_rank.size()) + " ranks, not for " + std::to_string(size);
  }
  const std::size_t roots = total_roots(tree);
  if (roots != tree.merges.size() + 1) {
    return "the tree has " + std::to_string(roots) + " roots and " + std::to_string(tree.merges.size()) +
           " merges; there must be one merge fewer than roots";
  }
  for (const auto [into, from] : tree.merges) {
    if (into >= roots || from >= roots || into == from) {
      return "the tree merges root " + std::to_string(from) + " into root " + std::to_string(into) + " of " + std::to_string(roots);
    }
  }
  return {};
}

}  // namespace lockstep::comm
