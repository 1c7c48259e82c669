#include "engine/runtime/step_plan.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

StepPlan example() {
  StepPlan plan;
  plan.sequence = 5'000'000'000;
  plan.batch.token_ids = {11, 12, 13, 7};
  plan.batch.positions = {30, 31, 32, 4};
  plan.batch.sequences = {{0, 3, 30, 0}, {3, 1, 4, 3}};
  plan.batch.block_tables = {4, 9, 2, 1};
  plan.batch.logit_rows = {2, 3};
  plan.wanted = {RowWants::kLogits, RowWants::kSelection};
  plan.selections = {{.scale = 1.25,
                      .covered = 0.9,
                      .row = 1,
                      .num_changes = 2,
                      .num_candidates = 64,
                      .num_best = 5,
                      .log_sum = device::LogSum::kOwn,
                      .num_masked = 1}};
  plan.changes = {{.id = 3, .bias = device::LogitChange::kMask}, {.id = 9, .repetition = 1.5f, .subtracted = 0.25f}};
  return plan;
}

std::string error_of(const std::vector<std::byte>& bytes) {
  try {
    StepPlan plan;
    deserialize(bytes, plan);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

std::string error_of(const StepPlan& plan) {
  std::vector<std::byte> bytes;
  serialize(plan, bytes);
  return error_of(bytes);
}

TEST(StepPlan, ComesBackAsItWas) {
  const StepPlan plan = example();
  std::vector<std::byte> bytes(1000);
  serialize(plan, bytes);
  EXPECT_EQ(bytes.size(), 64u + 4 * 8 + 2 * 20 + 4 * 4 + 2 * 5 + 40 + 2 * 16);
  StepPlan back = example();
  back.batch.token_ids.resize(99);
  back.batch.num_tables = 9;
  back.reason = "old";
  deserialize(bytes, back);
  EXPECT_EQ(back.kind, StepKind::kRun);
  EXPECT_EQ(back.sequence, plan.sequence);
  EXPECT_EQ(back.batch.token_ids, plan.batch.token_ids);
  EXPECT_EQ(back.batch.positions, plan.batch.positions);
  EXPECT_EQ(back.batch.num_tables, plan.batch.num_tables);
  EXPECT_EQ(back.batch.block_tables, plan.batch.block_tables);
  EXPECT_EQ(back.batch.logit_rows, plan.batch.logit_rows);
  EXPECT_EQ(back.wanted, plan.wanted);
  EXPECT_EQ(back.selections, plan.selections);
  EXPECT_EQ(back.changes, plan.changes);
  EXPECT_EQ(back.reason, "");
  ASSERT_EQ(back.batch.sequences.size(), 2u);
  EXPECT_EQ(back.batch.sequences[1].first_token, 3u);
  EXPECT_EQ(back.batch.sequences[1].num_tokens, 1u);
  EXPECT_EQ(back.batch.sequences[1].first_position, 4u);
  EXPECT_EQ(back.batch.sequences[1].block_table, 3u);
}

TEST(StepPlan, StopAndAbortCarryTheirKindAndReason) {
  StepPlan plan;
  plan.kind = StepKind::kAbort;
  plan.reason = "disk full";
  std::vector<std::byte> bytes;
  serialize(plan, bytes);
  StepPlan back = example();
  deserialize(bytes, back);
  EXPECT_EQ(back.kind, StepKind::kAbort);
  EXPECT_EQ(back.reason, "disk full");
  EXPECT_EQ(back.batch.num_tokens(), 0u);
}

TEST(StepPlan, ReusesItsMemory) {
  StepPlan plan = example();
  std::vector<std::byte> bytes;
  serialize(plan, bytes);
  StepPlan back;
  deserialize(bytes, back);
  const auto* tokens = back.batch.token_ids.data();
  const auto* data = bytes.data();
  plan.clear();
  plan.batch = example().batch;
  plan.wanted = example().wanted;
  plan.selections = example().selections;
  plan.changes = example().changes;
  serialize(plan, bytes);
  deserialize(bytes, back);
  EXPECT_EQ(back.batch.token_ids.data(), tokens);
  EXPECT_EQ(bytes.data(), data);
}

TEST(StepPlan, WrongMagicVersionKindOrSizeIsRefused) {
  std::vector<std::byte> bytes;
  serialize(example(), bytes);
  const auto with_word = [&](std::size_t word, std::uint32_t value) {
    std::vector<std::byte> changed = bytes;
    std::memcpy(changed.data() + 4 * word, &value, 4);
    return error_of(changed);
  };
  EXPECT_THAT(with_word(0, 1), HasSubstr("not the bytes of a plan"));
  EXPECT_THAT(with_word(1, 99), HasSubstr("version 99"));
  EXPECT_THAT(with_word(2, 4), HasSubstr("unknown kind 4"));
  EXPECT_THAT(with_word(3, 0xffffffff), HasSubstr("its counts"));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(error_of(std::vector(bytes.begin(), bytes.begin() + static_cast<long>(size))), "") << size;
  bytes.push_back(std::byte{0});
  EXPECT_THAT(error_of(bytes), HasSubstr("bytes"));
}

TEST(StepPlan, ContentsThatContradictThemselvesAreRefused) {
  const auto changed = [](auto&& change) {
    StepPlan plan = example();
    change(plan);
    return error_of(plan);
  };
  EXPECT_THAT(changed([](StepPlan& plan) { plan.clear(); }), HasSubstr("no token"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.token_ids[1] = -2; }), HasSubstr("token id -2"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.positions[1] = 32; }), HasSubstr("position 32 in row 1"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.sequences[1].first_token = 2; }), HasSubstr("sequence 1: begins at row 2"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.sequences[1].num_tokens = 2; }), HasSubstr("sequence 1: 2 tokens from row 3 of 4"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.sequences.pop_back(); }), HasSubstr("3 of 4 tokens"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.sequences[1].block_table = 4; }), HasSubstr("block table at entry 4"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.logit_rows[1] = 4; }), HasSubstr("logit row 4"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.batch.logit_rows[1] = 2; }), HasSubstr("logit row 2"));
  EXPECT_THAT(changed([](StepPlan& plan) { plan.wanted[0] = static_cast<RowWants>(7); }), HasSubstr("unknown wish 7"));
}

TEST(StepPlan, SelectionsThatDoNotFitTheRowsAreRefused) {
  const auto changed = [](auto&& change) {
    StepPlan plan = example();
    change(plan.selections[0], plan);
    return error_of(plan);
  };
  using Selection = device::SelectionRow;
  EXPECT_EQ(changed([](Selection&, StepPlan&) {}), "");
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.row = 0; }), HasSubstr("selection 0: row 0 does not want it"));
  EXPECT_THAT(changed([](Selection&, StepPlan& plan) { plan.wanted[0] = RowWants::kSelection; }), HasSubstr("row 1 does not want it"));
  EXPECT_THAT(changed([](Selection&, StepPlan& plan) { plan.wanted[1] = RowWants::kTop; }), HasSubstr("row 1 does not want it"));
  EXPECT_THAT(changed([](Selection&, StepPlan& plan) {
                plan.selections.clear();
                plan.changes.clear();
              }),
              HasSubstr("a row that wants a selection has none"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.scale = -1.0; }), HasSubstr("scale -1"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.scale = std::nan(""); }), HasSubstr("scale"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.covered = 1.5; }), HasSubstr("covered part 1.5"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.covered = std::nan(""); }), HasSubstr("covered part"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.num_candidates = 0; }), HasSubstr("0 candidates"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.num_best = 1025; }), HasSubstr("1025 best"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.log_sum = static_cast<device::LogSum>(3); }), HasSubstr("log-sum 3"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.log_sum = device::LogSum::kIsMass; }), HasSubstr("log-sum 2"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.num_changes = 3; }), HasSubstr("no 3 changes"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.num_changes = 1; }), HasSubstr("1 changes belong to no selection"));
  EXPECT_THAT(changed([](Selection& selection, StepPlan&) { selection.num_masked = 2; }), HasSubstr("2 masked ids"));
  EXPECT_THAT(changed([](Selection&, StepPlan& plan) { plan.changes[1].id = 3; }), HasSubstr("change of id 3 is out of order"));
  EXPECT_THAT(changed([](Selection&, StepPlan& plan) { plan.fetched = {1}; }), HasSubstr("rows to fetch"));
}

TEST(StepPlan, RowsToFetchAscend) {
  StepPlan plan;
  plan.kind = StepKind::kFetch;
  EXPECT_THAT(error_of(plan), HasSubstr("rows to fetch"));
  plan.fetched = {1, 4};
  EXPECT_EQ(error_of(plan), "");
  plan.fetched = {4, 4};
  EXPECT_THAT(error_of(plan), HasSubstr("row 4 to fetch is out of order"));
}

TEST(StepPlan, BlocksAreChecked) {
  StepPlan plan = example();
  EXPECT_NO_THROW(check_blocks(plan.batch, 16, 10));
  EXPECT_THROW(check_blocks(plan.batch, 16, 9), std::runtime_error);  // block 9
  EXPECT_THROW(check_blocks(plan.batch, 1, 100), std::runtime_error);
  plan.batch.num_tables = 2;
  EXPECT_THROW(check_blocks(plan.batch, 16, 10), std::runtime_error) << "as many tables as the cache has";
  EXPECT_THROW(check_blocks(plan.batch, 16, 10, 2), std::runtime_error) << "too few entries for two";
  plan.batch.sequences[1].block_table = 6;
  plan.batch.block_tables = {4, 9, 2, 1, 0, 3, 5, 6};
  EXPECT_NO_THROW(check_blocks(plan.batch, 16, 10, 2));
  plan.batch.block_tables[7] = 10;
  EXPECT_THROW(check_blocks(plan.batch, 16, 10, 2), std::runtime_error) << "in the second table";
}

TEST(StepPlan, MutatedBytesNeverDoHarm) {
  std::vector<std::byte> bytes;
  serialize(example(), bytes);
  std::mt19937 random(1);
  StepPlan plan;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> mutated = bytes;
    for (unsigned change = 0; change <= random() % 4; ++change) mutated[random() % mutated.size()] = static_cast<std::byte>(random());
    if (random() % 8 == 0) mutated.resize(random() % (2 * mutated.size()));
    try {
      deserialize(mutated, plan);
      check_blocks(plan.batch, 16, 10);
    } catch (const std::runtime_error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace lockstep::engine
