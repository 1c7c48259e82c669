#include "parallel/shard.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

using testing::HasSubstr;

ModelDims example_model() {
  return {.num_layers = 30,
          .hidden = 576,
          .num_heads = 9,
          .num_kv_heads = 3,
          .head_dim = 64,
          .feed_forward = 1536,
          .vocabulary = 49152,
          .block_quantised = true};
}

ModelDims dims_with_heads(std::size_t heads, std::size_t kv_heads, std::size_t head_dim = 128, bool quantised = false) {
  return {.num_layers = 1,
          .hidden = heads * head_dim,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .feed_forward = 11008,
          .vocabulary = 32000,
          .block_quantised = quantised};
}

TEST(Shard, AttentionLeavesFollowTheTableOfTheDesign) {
  EXPECT_EQ(leaves_of(dims_with_heads(9, 3)).attention_ends.size(), 9u);
  EXPECT_EQ(leaves_of(dims_with_heads(32, 8)).attention_ends.size(), 32u);
  EXPECT_EQ(leaves_of(dims_with_heads(40, 8)).attention_ends.size(), 40u);
  EXPECT_EQ(leaves_of(dims_with_heads(28, 4)).attention_ends.size(), 28u);
  EXPECT_EQ(leaves_of(dims_with_heads(64, 8)).attention_ends.size(), 32u);
}

TEST(Shard, QuantisedAttentionLeavesEndAtBlockBorders) {
  EXPECT_EQ(leaves_of(dims_with_heads(8, 8, 8, true)).attention_ends, (std::vector<std::size_t>{4, 8}));
  EXPECT_EQ(leaves_of(dims_with_heads(9, 3, 32, true)).attention_ends.size(), 9u);
}

TEST(Shard, FeedForwardLeavesFollowTheTableOfTheDesign) {
  ModelDims dims = dims_with_heads(8, 8);
  const auto leaves = [&](std::size_t inner, bool quantised) {
    dims.feed_forward = inner;
    dims.block_quantised = quantised;
    return leaves_of(dims).feed_forward_ends;
  };
  EXPECT_EQ(leaves(1536, true).size(), 16u);
  EXPECT_EQ(leaves(1536, true).front(), 96u);
  EXPECT_EQ(leaves(8192, false).size(), 32u);
  EXPECT_EQ(leaves(176, false).size(), 16u);   // 22 units of 8
  EXPECT_EQ(leaves(176, false).front(), 16u);  // larger shares first
  EXPECT_EQ(leaves(176, false).back(), 176u);
  EXPECT_EQ(leaves(352, true).size(), 11u);  // 11 units of 32: never more leaves than units
  EXPECT_EQ(leaves(20, false), (std::vector<std::size_t>{8, 16, 20}));
}

TEST(Shard, NineHeadsOnTwoRanksAreFiveAndFour) {
  const auto shards = all_shards(example_model(), 2);
  EXPECT_EQ(shards[0].heads, (Range{0, 5}));
  EXPECT_EQ(shards[1].heads, (Range{5, 9}));
  EXPECT_EQ(shards[0].kv_heads, (Range{0, 2}));
  EXPECT_EQ(shards[1].kv_heads, (Range{1, 3}));  // KV head 1 is needed, and held, by both
  EXPECT_EQ(shards[1].feed_forward, (Range{768, 1536}));
  EXPECT_EQ(shards[1].vocabulary, (Range{24576, 49152}));
}

TEST(Shard, SharesCoverEverythingOnceForEveryNumberOfRanks) {
  ModelDims dims = example_model();
  dims.vocabulary = 257;
  for (std::size_t num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    std::size_t heads = 0, inner = 0, ids = 0;
    for (const Shard& shard : all_shards(dims, num_ranks)) {
      EXPECT_EQ(shard.heads.begin, heads);
      EXPECT_EQ(shard.feed_forward.begin, inner);
      EXPECT_EQ(shard.vocabulary.begin, ids);
      heads = shard.heads.end;
      inner = shard.feed_forward.end;
      ids = shard.vocabulary.end;
      for (std::size_t head = shard.heads.begin; head < shard.heads.end; ++head) {
        EXPECT_GE(head / 3, shard.kv_heads.begin);
        EXPECT_LT(head / 3, shard.kv_heads.end);
      }
    }
    EXPECT_EQ(heads, 9u);
    EXPECT_EQ(inner, 1536u);
    EXPECT_EQ(ids, 257u);
  }
}

TEST(Shard, AVocabularyOf97OnFourRanksIsCutInSegmentsOf16) {
  ModelDims dims = example_model();
  dims.vocabulary = 97;
  const auto shards = all_shards(dims, 4);
  EXPECT_EQ(shards[0].vocabulary, (Range{0, 32}));
  EXPECT_EQ(shards[3].vocabulary, (Range{96, 97}));
}

TEST(Shard, SixHeadsRunOnFourRanksAndSevenRanksAreRefused) {
  const ModelDims dims = dims_with_heads(6, 2);
  EXPECT_NO_THROW(check_num_ranks(dims, 4));
  try {
    check_num_ranks(dims, 7);
    FAIL() << "7 ranks were accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("7 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("6 query heads"));
    EXPECT_THAT(error.what(), HasSubstr("1 to 6 ranks"));
  }
}

TEST(Shard, ImbalanceIsLargestOverEvenShare) {
  ModelDims even_dims = dims_with_heads(32, 32);
  even_dims.feed_forward = 8192;
  EXPECT_DOUBLE_EQ(imbalance(even_dims, 4), 1.0);
  // Example model on 2 ranks: q and o 5 of 9 heads, k and v 2 of 3 heads, half of the inner columns.
  const double rank0 = (2 * 5 + 2 * 2) * 64 + 3 * 768.0;
  const double even = ((2 * 9 + 2 * 3) * 64 + 3 * 1536.0) / 2;
  EXPECT_NEAR(imbalance(example_model(), 2), rank0 / even, 1e-12);
}

TEST(Shard, RefusesSizesThatMakeNoModel) {
  EXPECT_THROW(leaves_of(dims_with_heads(9, 2)), std::invalid_argument);
  ModelDims dims = example_model();
  dims.feed_forward = 0;
  EXPECT_THROW(leaves_of(dims), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::parallel
