#include "comm/tree_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/conformance.h"

namespace lockstep::comm {
namespace {

using conformance::noise;
using conformance::plain_tree;
using conformance::SharedTree;
using testing::HasSubstr;

std::vector<std::vector<float>> leaves(std::size_t num_leaves, std::size_t count) {
  std::vector<std::vector<float>> values(num_leaves, std::vector<float>(count));
  for (std::size_t leaf = 0; leaf < num_leaves; ++leaf) {
    for (std::size_t i = 0; i < count; ++i) values[leaf][i] = noise(leaf, i);
  }
  return values;
}

/// A tree in which every leaf is a root.
TreeSum tree_of(std::size_t num_leaves) { return SharedTree(num_leaves, static_cast<int>(num_leaves)).sum; }

TEST(TreeSum, TheResultMayReplaceAnyRoot) {
  constexpr std::size_t num_leaves = 9;
  constexpr std::size_t count = 600;  // more than two blocks
  TreeScratch scratch;
  for (std::size_t place = 0; place < num_leaves; ++place) {
    std::vector<std::vector<float>> values = leaves(num_leaves, count);
    std::vector<const float*> roots;
    for (const std::vector<float>& leaf : values) roots.push_back(leaf.data());
    tree_sum(tree_of(num_leaves), roots, values[place].data(), count, scratch);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(values[place][i], plain_tree(noise, 0, num_leaves, i)) << "value " << i << " in root " << place;
  }
}

TEST(TreeSum, RootsThatAreNotReplacedAreOnlyRead) {
  std::vector<std::vector<float>> values = leaves(7, 300);
  const std::vector<std::vector<float>> before = values;
  std::vector<const float*> roots;
  for (const std::vector<float>& leaf : values) roots.push_back(leaf.data());
  std::vector<float> out(300);
  TreeScratch scratch;
  tree_sum(tree_of(7), roots, out.data(), out.size(), scratch);
  EXPECT_EQ(values, before);
}

TEST(TreeSum, TheOrderOfMergesDecidesTheBits) {
  const float big = 1e8f;
  const std::vector<float> values = {big, 3.0f, 3.0f, -big};
  const std::vector<const float*> roots = {&values[0], &values[1], &values[2], &values[3]};
  const auto sum = [&](std::vector<TreeSum::Merge> merges) {
    TreeScratch scratch;
    float out = 0;
    tree_sum({{4}, std::move(merges)}, roots, &out, 1, scratch);
    return out;
  };
  EXPECT_EQ(sum({{0, 1}, {2, 3}, {0, 2}}), 0.0f);
  EXPECT_EQ(sum({{0, 3}, {1, 2}, {0, 1}}), 6.0f);
}

TEST(TreeError, ABrokenTreeIsToldByItsFault) {
  EXPECT_EQ(tree_error({{1, 1}, {{0, 1}}}, 2), "");
  EXPECT_EQ(tree_error({{2, 0}, {{0, 1}}}, 2), "");
  EXPECT_THAT(tree_error({{1, 1}, {{0, 1}}}, 3), HasSubstr("for 2 ranks, not for 3"));
  EXPECT_THAT(tree_error({{1, 1}, {}}, 2), HasSubstr("2 roots and 0 merges"));
  EXPECT_THAT(tree_error({{0, 0}, {}}, 2), HasSubstr("0 roots and 0 merges"));
  EXPECT_THAT(tree_error({{1, 1}, {{0, 2}}}, 2), HasSubstr("root 2 into root 0 of 2"));
  EXPECT_THAT(tree_error({{1, 1}, {{1, 1}}}, 2), HasSubstr("root 1 into root 1"));
}

}  // namespace
}  // namespace lockstep::comm
