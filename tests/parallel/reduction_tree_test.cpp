#include "parallel/reduction_tree.h"

#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

/// The definition, written as the recursion that it is.
float sum_of(const std::vector<float>& values, Range node) {
  if (node.size() == 1) return values[node.begin];
  std::size_t power = 1;
  while (2 * power < node.size()) power *= 2;
  return sum_of(values, {node.begin, node.begin + power}) + sum_of(values, {node.begin + power, node.end});
}

std::vector<std::size_t> unit_ends(std::size_t num_leaves) {
  std::vector<std::size_t> ends(num_leaves);
  for (std::size_t leaf = 0; leaf < num_leaves; ++leaf) ends[leaf] = leaf + 1;
  return ends;
}

/// What a device does with a leaf program.
std::vector<float> run(const std::vector<device::Leaf>& program, const std::vector<float>& values, std::size_t first) {
  std::vector<float> stack;
  std::vector<float> roots;
  for (std::size_t i = 0; i < program.size(); ++i) {
    stack.push_back(values[first + i]);
    for (std::uint32_t merge = 0; merge < program[i].merges; ++merge) {
      const float above = stack.back();
      stack.pop_back();
      stack.back() = stack.back() + above;
    }
    if (program[i].ends_root) {
      EXPECT_EQ(stack.size(), 1u);
      roots.push_back(stack.back());
      stack.clear();
    }
  }
  EXPECT_TRUE(stack.empty());
  return roots;
}

TEST(ReductionTree, EveryNumberOfRanksGivesTheSameBits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 100.0f);
  for (std::size_t num_leaves = 1; num_leaves <= 40; ++num_leaves) {
    const ReductionTree tree(num_leaves);
    std::vector<float> values(num_leaves);
    for (float& value : values) value = normal(random);
    const float expected = sum_of(values, {0, num_leaves});
    for (std::size_t num_ranks = 1; num_ranks <= num_leaves; ++num_ranks) {
      std::vector<Range> shares;
      std::vector<float> roots;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        shares.push_back(even_share(num_leaves, rank, num_ranks));
        const auto mine = run(tree.leaf_program(shares.back(), unit_ends(num_leaves)), values, shares.back().begin);
        EXPECT_EQ(mine.size(), tree.roots(shares.back()).size());
        roots.insert(roots.end(), mine.begin(), mine.end());
      }
      const comm::TreeSum sum = tree.tree_sum(shares);
      for (const auto& merge : sum.merges) roots[merge.into] = roots[merge.into] + roots[merge.from];
      EXPECT_EQ(roots[0], expected) << num_leaves << " leaves, " << num_ranks << " ranks";
    }
  }
}

TEST(ReductionTree, TheSumOfNegativeZerosKeepsItsSign) {
  const ReductionTree tree(3);
  const std::vector<float> values(3, -0.0f);
  const auto roots = run(tree.leaf_program({0, 3}, unit_ends(3)), values, 0);
  EXPECT_TRUE(std::signbit(roots.at(0)));
}

TEST(ReductionTree, RootsCoverTheShareOnceAndInOrder) {
  const ReductionTree tree(9);
  EXPECT_EQ(tree.roots({0, 5}), (std::vector<Range>{{0, 4}, {4, 5}}));
  EXPECT_EQ(tree.roots({5, 9}), (std::vector<Range>{{5, 6}, {6, 8}, {8, 9}}));
  EXPECT_EQ(tree.roots({3, 3}), std::vector<Range>{});
}

TEST(ReductionTree, LeafEndsCountFromTheShare) {
  const std::vector<std::size_t> ends{32, 64, 100};
  const auto program = ReductionTree(3).leaf_program({1, 3}, ends);
  ASSERT_EQ(program.size(), 2u);
  EXPECT_EQ(program[0].end, 32u);
  EXPECT_EQ(program[1].end, 68u);
}

TEST(ReductionTree, RefusesAShareOutsideTheLeaves) {
  EXPECT_THROW(ReductionTree(9).roots({7, 10}), std::out_of_range);
  EXPECT_THROW(ReductionTree(0), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::parallel
