#include "comm/cuda/tree_program.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/tree_sum.h"

namespace lockstep::comm::cuda {
namespace {

struct Node {
  int left = -1;  // -1: a root of a rank
  int right = -1;
  std::uint32_t depth = 1;  // the stack that its evaluation needs
  std::uint32_t root = 0;
};

/// Every merge becomes a node, the last one the whole sum. The operand that needs the deeper stack comes first: so log2(roots) + 1 values
/// are enough for any tree.
std::vector<Node> nodes_of(const TreeSum& tree, std::size_t num_roots) {
  std::vector<Node> nodes(num_roots);
  std::vector<int> current(num_roots);
  for (std::size_t root = 0; root < num_roots; ++root) {
    nodes[root].root = static_cast<std::uint32_t>(root);
    current[root] = static_cast<int>(root);
  }
  std::vector<bool> merged_away(num_roots);
  for (const auto [into, from] : tree.merges) {
    if (merged_away[into] || merged_away[from])
      throw std::invalid_argument("the tree merges root " + std::to_string(from) + " into root " + std::to_string(into) +
                                  " when one of them is gone");
    merged_away[from] = true;
    Node merged{current[into], current[from]};
    const std::uint32_t left = nodes[static_cast<std::size_t>(merged.left)].depth;
    const std::uint32_t right = nodes[static_cast<std::size_t>(merged.right)].depth;
    if (left < right) std::swap(merged.left, merged.right);
    merged.depth = std::max({left, right, std::min(left, right) + 1});
    current[into] = static_cast<int>(nodes.size());
    nodes.push_back(merged);
  }
  if (merged_away[0]) throw std::invalid_argument("the tree's sum does not end in root 0");
  return nodes;
}

void add_to_digest(std::uint32_t& digest, std::uint32_t value) { digest = (digest ^ value) * 0x01000193u; }

}  // namespace

TreeProgram make_tree_program(const TreeSum& tree) {
  const std::size_t num_roots = total_roots(tree);
  const std::uint32_t most = *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  if (num_roots > TreeProgram::max_roots || tree.roots_per_rank.size() > 256 || most > 256) {
    throw std::invalid_argument("all_reduce between GPUs: a tree of " + std::to_string(num_roots) + " roots on " +
                                std::to_string(tree.roots_per_rank.size()) + " ranks; at most " + std::to_string(TreeProgram::max_roots) +
                                " roots on 256 ranks can be added");
  }
  TreeProgram program;
  program.max_roots_of_a_rank = std::max(most, 1u);
  program.digest = 0x811c9dc5u;
  std::vector<TreeProgram::Step> owner_of;
  for (std::size_t rank = 0; rank < tree.roots_per_rank.size(); ++rank) {
    add_to_digest(program.digest, tree.roots_per_rank[rank]);
    for (std::uint32_t root = 0; root < tree.roots_per_rank[rank]; ++root)
      owner_of.push_back({static_cast<std::uint8_t>(rank), static_cast<std::uint8_t>(root), 0});
  }
  for (const auto [into, from] : tree.merges) add_to_digest(program.digest, into * 65536u + from);

  const std::vector<Node> nodes = nodes_of(tree, num_roots);
  program.depth = nodes.back().depth;
  std::vector<std::pair<int, bool>> open = {{static_cast<int>(nodes.size()) - 1, false}};  // node, both operands done
  while (!open.empty()) {
    const auto [index, done] = open.back();
    open.pop_back();
    const Node& node = nodes[static_cast<std::size_t>(index)];
    if (node.left < 0) {
      program.steps[program.num_roots++] = owner_of[node.root];
    } else if (done) {
      ++program.steps[program.num_roots - 1].merges;
    } else {
      open.insert(open.end(), {{index, true}, {node.right, false}, {node.left, false}});
    }
  }
  return program;
}

}  // namespace lockstep::comm::cuda
