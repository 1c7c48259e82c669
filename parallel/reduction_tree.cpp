#include "parallel/reduction_tree.h"

#include <bit>
#include <map>
#include <stdexcept>
#include <string>

namespace lockstep::parallel {
namespace {

/// Where a node of two or more leaves splits.
std::size_t split(Range node) { return node.begin + std::bit_floor(node.size() - 1); }

void collect_roots(Range node, Range share, std::vector<Range>& found) {
  if (node.end <= share.begin || share.end <= node.begin) return;
  if (share.begin <= node.begin && node.end <= share.end) {
    found.push_back(node);
    return;
  }
  collect_roots({node.begin, split(node)}, share, found);
  collect_roots({split(node), node.end}, share, found);
}

/// Post-order: the additions at `node` belong to its last leaf. `program[i]` is leaf `first + i`.
void count_merges(Range node, std::size_t first, std::vector<device::Leaf>& program) {
  if (node.size() < 2) return;
  count_merges({node.begin, split(node)}, first, program);
  count_merges({split(node), node.end}, first, program);
  ++program[node.end - 1 - first].merges;
}

std::uint32_t finish(Range node, const std::map<std::size_t, std::pair<Range, std::uint32_t>>& roots,
                     std::vector<comm::TreeSum::Merge>& merges) {
  const auto root = roots.find(node.begin);
  if (root != roots.end() && root->second.first == node) return root->second.second;
  const std::uint32_t below = finish({node.begin, split(node)}, roots, merges);
  const std::uint32_t above = finish({split(node), node.end}, roots, merges);
  merges.push_back({below, above});
  return below;
}

}  // namespace

Range even_share(std::size_t units, std::size_t part, std::size_t parts) {
  const std::size_t size = units / parts;
  const std::size_t larger = units % parts;
  const std::size_t begin = part * size + (part < larger ? part : larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

ReductionTree::ReductionTree(std::size_t num_leaves) : num_leaves_(num_leaves) {
  if (num_leaves == 0) throw std::invalid_argument("reduction tree: it needs at least one leaf");
}

std::vector<Range> ReductionTree::roots(Range share) const {
  if (share.begin > share.end || share.end > num_leaves_) {
    throw std::out_of_range("reduction tree: share [" + std::to_string(share.begin) + ", " + std::to_string(share.end) +
                            ") is not within " + std::to_string(num_leaves_) + " leaves");
  }
  std::vector<Range> found;
  collect_roots({0, num_leaves_}, share, found);
  return found;
}

std::vector<device::Leaf> ReductionTree::leaf_program(Range share, std::span<const std::size_t> leaf_ends) const {
  if (leaf_ends.size() != num_leaves_) {
    throw std::invalid_argument("reduction tree: " + std::to_string(leaf_ends.size()) + " leaf ends for " + std::to_string(num_leaves_) +
                                " leaves");
  }
  const std::size_t first_column = share.begin == 0 ? 0 : leaf_ends[share.begin - 1];
  std::vector<device::Leaf> program(share.size());
  for (std::size_t i = 0; i < program.size(); ++i) program[i].end = static_cast<std::uint32_t>(leaf_ends[share.begin + i] - first_column);
  for (const Range root : roots(share)) {
    count_merges(root, share.begin, program);
    program[root.end - 1 - share.begin].ends_root = true;
  }
  return program;
}

comm::TreeSum ReductionTree::tree_sum(std::span<const Range> shares) const {
  comm::TreeSum sum;
  std::map<std::size_t, std::pair<Range, std::uint32_t>> known;  // by first leaf
  for (const Range share : shares) {
    const std::vector<Range> mine = roots(share);
    sum.roots_per_rank.push_back(static_cast<std::uint32_t>(mine.size()));
    for (const Range root : mine) known.emplace(root.begin, std::pair{root, static_cast<std::uint32_t>(known.size())});
  }
  finish({0, num_leaves_}, known, sum.merges);
  return sum;
}

}  // namespace lockstep::parallel
