#include "engine/runtime/kv_cache.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

TEST(BlockAllocator, CoversPositionsAndTakesBlocksBack) {
  BlockAllocator blocks(5, 16);
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> second;
  EXPECT_TRUE(blocks.extend(first, 1));
  EXPECT_TRUE(blocks.extend(first, 16));
  EXPECT_EQ(first.size(), 1u);
  EXPECT_TRUE(blocks.extend(first, 17));
  EXPECT_TRUE(blocks.extend(second, 33));
  EXPECT_EQ(blocks.num_free(), 0u);
  std::set<std::uint32_t> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  EXPECT_EQ(all, (std::set<std::uint32_t>{0, 1, 2, 3, 4}));
  const auto before = first;
  EXPECT_FALSE(blocks.extend(first, 33));
  EXPECT_EQ(first, before);
  blocks.release(second);
  EXPECT_TRUE(second.empty());
  EXPECT_TRUE(blocks.extend(first, 80));
  EXPECT_EQ(blocks.num_free(), 0u);
}

TEST(BlockAllocator, ABlockThatIsNotInUseCanNotBeGivenBack) {
  BlockAllocator blocks(4, 16);
  std::vector<std::uint32_t> table = {2};
  EXPECT_THROW(blocks.release(table), std::logic_error);
  table = {7};
  EXPECT_THROW(blocks.release(table), std::logic_error);
  EXPECT_THROW(BlockAllocator(0, 16), std::invalid_argument);
  EXPECT_THROW(BlockAllocator(16, 0), std::invalid_argument);
}

TEST(BlockAllocator, FindsABlockByItsWholeContent) {
  BlockAllocator blocks(4, 2);
  const std::vector<std::int32_t> one = {1, 2}, two = {1, 3};
  std::vector<std::uint32_t> table;
  ASSERT_TRUE(blocks.extend(table, 4));
  const std::uint32_t first = table[0], second = table[1];
  EXPECT_EQ(blocks.publish(first, {0, std::nullopt, one}), first);
  EXPECT_EQ(blocks.publish(second, {0, first, two}), second);
  EXPECT_EQ(blocks.find({0, std::nullopt, two}), std::nullopt) << "other tokens";
  EXPECT_EQ(blocks.find({1, std::nullopt, one}), std::nullopt) << "another group";
  EXPECT_EQ(blocks.find({0, std::nullopt, std::vector<std::int32_t>{1, 3}}), std::nullopt) << "nothing before it";
  EXPECT_EQ(blocks.find({0, second, two}), std::nullopt) << "something else before it";
  EXPECT_EQ(blocks.find({0, first, two}), second);
  EXPECT_EQ(blocks.num_free(), 2u);
  blocks.release(table);
  EXPECT_EQ(blocks.num_free(), 3u) << "the second block has another holder";
  EXPECT_EQ(blocks.num_kept(), 1u);
}

TEST(BlockAllocator, TheSameContentEndsAsOneBlock) {
  BlockAllocator blocks(2, 1);
  const std::vector<std::int32_t> tokens = {7};
  std::vector<std::uint32_t> table;
  ASSERT_TRUE(blocks.extend(table, 2));
  const std::uint32_t first = table[0];
  EXPECT_EQ(blocks.publish(table[0], {0, std::nullopt, tokens}), first);
  EXPECT_EQ(blocks.publish(table[1], {0, std::nullopt, tokens}), first);
  EXPECT_EQ(blocks.num_free(), 1u);
  table[1] = first;
  blocks.release(table);
  EXPECT_EQ(blocks.num_free(), 2u);
}

TEST(BlockAllocator, KeptBlocksGiveWayTheLeastRecentlyUsedAndDeepestFirst) {
  BlockAllocator blocks(4, 1);
  const std::vector<std::int32_t> a = {1}, b = {2}, c = {3};
  std::vector<std::uint32_t> old_one, new_one;
  ASSERT_TRUE(blocks.extend(old_one, 2));
  const std::uint32_t first = blocks.publish(old_one[0], {0, std::nullopt, a});
  blocks.publish(old_one[1], {0, first, b});
  ASSERT_TRUE(blocks.extend(new_one, 1));
  blocks.publish(new_one[0], {0, std::nullopt, c});
  blocks.release(old_one);
  blocks.release(new_one);
  EXPECT_EQ(blocks.num_free(), 4u);
  std::vector<std::uint32_t> table;
  ASSERT_TRUE(blocks.extend(table, 2));  // the free one, then the old chain's end
  EXPECT_EQ(blocks.find({0, first, b}), std::nullopt);
  EXPECT_EQ(blocks.find({0, std::nullopt, a}), first);
  table.push_back(first);
  ASSERT_TRUE(blocks.extend(table, 4));
  EXPECT_EQ(blocks.find({0, std::nullopt, c}), std::nullopt);
  EXPECT_FALSE(blocks.extend(table, 5)) << "a held block is never taken";
  blocks.release(table);
  EXPECT_EQ(blocks.num_free(), 4u);
}

// SmolLM2-135M: 30 layers, 3 KV heads of 64, fp16: 2 * 30 * 3 * 64 * 2 = 23,040 bytes a token, 368,640 a block of 16.
device::KvCacheSpec example_spec() {
  device::KvCacheSpec spec;
  spec.num_layers = 30;
  spec.block_size = 16;
  spec.num_kv_heads = 3;
  spec.head_dim = 64;
  spec.dtype = device::DType::kF16;
  return spec;
}

TEST(KvCacheSize, IsWhatTheBudgetPaysFor) {
  const KvCacheSize size = size_kv_cache(368'640 * 100 + 368'639, example_spec(), 1024, true, 32);
  EXPECT_EQ(size.num_blocks, 100u);
  EXPECT_EQ(size.bytes_per_token, 23'040u);
  EXPECT_EQ(size.max_model_len, 1024u);
}

TEST(KvCacheSize, IsNoMoreThanTheSequencesCanUse) {
  EXPECT_EQ(size_kv_cache(std::uint64_t{1} << 40, example_spec(), 1000, true, 4).num_blocks, 4u * 63u);
}

TEST(KvCacheSize, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  try {
    size_kv_cache(10'000'000, example_spec(), 2048, true, 32);
    FAIL();
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("a token takes 23040 bytes"));
    EXPECT_THAT(message, HasSubstr("10000000 bytes hold 432 tokens"));  // 27 blocks
    EXPECT_THAT(message, HasSubstr("one sequence of 2048 tokens needs 47185920 bytes"));
    EXPECT_THAT(message, HasSubstr("longest workable length is 432"));
  }
  EXPECT_EQ(size_kv_cache(10'000'000, example_spec(), 432, true, 32).num_blocks, 27u) << "what the message calls workable works";
  EXPECT_THROW(size_kv_cache(10'000'000, example_spec(), 433, true, 32), std::runtime_error);
  EXPECT_THROW(size_kv_cache(368'639, example_spec(), 8, false, 1), std::runtime_error);
}

TEST(KvCacheSize, AModelsOwnMaximumDoesNotSwallowTheMemory) {
  const KvCacheSize size = size_kv_cache(200'000'000, example_spec(), 131'072, false, 32);
  EXPECT_EQ(size.num_blocks, 542u);
  EXPECT_LE(size.num_blocks * 368'640, 200'000'000u);
  EXPECT_EQ(size.max_model_len, 542u * 16u);
}

}  // namespace
}  // namespace lockstep::engine
