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

TEST(BlockAllocator, SlidingBlocksOfAKnownStretchAreKeptUntilTheyAreNeeded) {
  BlockAllocator blocks(6, 1, {.whole = 1, .sliding = 2});
  const std::vector<std::int32_t> token = {7};
  std::vector<std::uint32_t> stretches, others;
  ASSERT_TRUE(blocks.extend(stretches, 2));
  EXPECT_EQ(blocks.num_free(), 0u);
  blocks.unsee(stretches[1]);
  EXPECT_EQ(blocks.num_free(), 2u);
  EXPECT_EQ(blocks.num_kept(), 0u) << "nobody could find them";
  const std::uint32_t known = blocks.publish(stretches[0], {0, std::nullopt, token});
  blocks.unsee(known);
  EXPECT_EQ(blocks.num_kept(), 2u);
  EXPECT_TRUE(blocks.has_sliding_blocks(known));
  blocks.see(known);
  EXPECT_EQ(blocks.num_kept(), 0u);
  blocks.unsee(known);
  ASSERT_TRUE(blocks.extend(others, 1));  // two that are free, and one of those that are kept: both go
  EXPECT_FALSE(blocks.has_sliding_blocks(known));
  EXPECT_EQ(blocks.num_free(), 1u);
  EXPECT_EQ(blocks.find({0, std::nullopt, token}), known) << "it is held on without them";
  std::vector<std::uint32_t> twice = {known};
  blocks.release(twice, 1);
  EXPECT_EQ(blocks.publish(others[0], {0, std::nullopt, token}), known) << "and gets those of the same content";
  EXPECT_TRUE(blocks.has_sliding_blocks(known));
  others[0] = known;
  EXPECT_EQ(blocks.num_free(), 2u);
  blocks.release(others);
  blocks.release(stretches, 2);
  EXPECT_EQ(blocks.num_free(), 6u);
  EXPECT_EQ(blocks.num_kept(), 3u);
}

TEST(KvLayout, LayersThatSeeEquallyFarShareTheBlocks) {
  EXPECT_TRUE(kv_layout(std::vector<std::uint32_t>{0, 0, 0}).places.empty());
  EXPECT_EQ(kv_layout(std::vector<std::uint32_t>{0, 0, 0}).tables.whole, 1u);
  const KvLayout sliding = kv_layout(std::vector<std::uint32_t>{5, 9});
  EXPECT_TRUE(sliding.places.empty());
  EXPECT_EQ(sliding.tables.whole, 0u);
  EXPECT_EQ(sliding.tables.sliding, 1u);
  EXPECT_EQ(sliding.window, 9u);
}

TEST(KvLayout, LayersOfTwoKindsGoIntoBlocksOfTheSameSize) {
  struct Case {
    std::size_t whole, sliding, whole_tables, sliding_tables, slots;
  };
  // Every second layer; five of six (26 and 34 layers); the last eight of 28; one of many.
  for (const Case& c : {Case{13, 13, 1, 1, 13}, Case{4, 22, 1, 6, 4}, Case{5, 29, 1, 6, 5}, Case{20, 8, 5, 2, 4}, Case{1, 40, 1, 5, 8}}) {
    std::vector<std::uint32_t> windows;
    for (std::size_t layer = 0; layer < c.whole + c.sliding; ++layer) windows.push_back(layer < c.sliding ? 4096 : 0);
    const KvLayout layout = kv_layout(windows);
    device::KvCacheSpec spec;
    spec.num_layers = windows.size();
    spec.places = layout.places;
    EXPECT_EQ(layout.tables.whole, c.whole_tables) << c.sliding;
    EXPECT_EQ(layout.tables.sliding, c.sliding_tables) << c.sliding;
    EXPECT_EQ(spec.num_tables(), layout.tables.all());
    EXPECT_EQ(spec.num_slots(), c.slots) << c.sliding;
    std::set<std::pair<std::uint32_t, std::uint32_t>> used;
    for (std::size_t layer = 0; layer < windows.size(); ++layer) {
      EXPECT_EQ(layout.places[layer].table >= layout.tables.whole, windows[layer] != 0);
      EXPECT_TRUE(used.insert({layout.places[layer].table, layout.places[layer].slot}).second);
    }
  }
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

TEST(KvCacheSize, CountsTheBlocksOfAllTables) {
  device::KvCacheSpec spec = example_spec();
  for (std::uint32_t layer = 0; layer < 30; ++layer) spec.places.push_back({layer / 8, layer % 8});  // 4 tables of 8
  const KvCacheSize size = size_kv_cache(368'640 / 30 * 32 * 100, spec, 1600, true, 32);
  EXPECT_EQ(size.num_blocks, 400u);
  EXPECT_EQ(size.bytes_per_token, 23'040u / 30 * 32);
  EXPECT_EQ(size.max_model_len, 1600u);
  EXPECT_THROW(size_kv_cache(368'640 / 30 * 32 * 100, spec, 1601, true, 32), std::runtime_error);
}

TEST(KvCacheSize, AModelsOwnMaximumDoesNotSwallowTheMemory) {
  const KvCacheSize size = size_kv_cache(200'000'000, example_spec(), 131'072, false, 32);
  EXPECT_EQ(size.num_blocks, 542u);
  EXPECT_LE(size.num_blocks * 368'640, 200'000'000u);
  EXPECT_EQ(size.max_model_len, 542u * 16u);
}

}  // namespace
}  // namespace lockstep::engine
