#include "engine/runtime/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

SchedulerOptions options_with(std::size_t max_num_seqs, std::size_t max_num_batched_tokens, std::size_t num_blocks,
                              std::size_t block_size = 4) {
  SchedulerOptions options;
  options.max_num_seqs = max_num_seqs;
  options.max_num_batched_tokens = max_num_batched_tokens;
  options.num_blocks = num_blocks;
  options.block_size = block_size;
  return options;
}

/// Drives a scheduler as the coordinator does, and checks every step. A sequence is over when it has its maximum of tokens.
class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options) : options_(options), scheduler_(options) {}

  void add(std::size_t prompt, std::size_t answer) {
    const SequenceId id = scheduler_.add(std::vector<TokenId>(prompt, 1), prompt + answer);
    sequences_[id] = {prompt, prompt + answer, 0};
  }

  bool idle() const { return sequences_.empty(); }
  std::size_t steps() const { return steps_; }
  const std::vector<SequenceId>& admissions() const { return admissions_; }
  const Scheduler& scheduler() const { return scheduler_; }

  void step() {
    std::vector<ScheduledChunk> chunks;
    scheduler_.schedule(chunks);
    ASSERT_FALSE(chunks.empty());
    ++steps_;
    check(chunks);
    scheduler_.advance();
    for (const ScheduledChunk& chunk : chunks) {
      Track& track = sequences_.at(chunk.sequence);
      track.num_computed += chunk.num_tokens;
      if (!chunk.reaches_end) continue;
      if (track.num_computed + 1 == track.max_length) {
        scheduler_.remove(chunk.sequence);
        sequences_.erase(chunk.sequence);
      } else {
        scheduler_.append(chunk.sequence, 2);
      }
    }
    if (idle()) {
      EXPECT_EQ(scheduler_.num_free_blocks(), options_.num_blocks);
      EXPECT_EQ(restarts_, scheduler_.num_preemptions()) << "something was computed again without need";
    }
  }

 private:
  struct Track {
    std::size_t prompt = 0;
    std::size_t max_length = 0;
    std::size_t num_computed = 0;  // positions that this simulation has seen computed since the last restart
  };

  void check(const std::vector<ScheduledChunk>& chunks) {
    std::size_t num_tokens = 0;
    std::set<SequenceId> seen;
    std::set<std::uint32_t> blocks;
    bool prefills_began = false;
    for (const ScheduledChunk& chunk : chunks) {
      Track& track = sequences_.at(chunk.sequence);
      EXPECT_TRUE(seen.insert(chunk.sequence).second) << "twice in one step";
      if (chunk.first_position == 0 && track.num_computed == 0 && (admitted_.insert(chunk.sequence).second))
        admissions_.push_back(chunk.sequence);
      if (chunk.first_position == 0 && track.num_computed > 0) {  // a recomputation begins anew
        track.num_computed = 0;
        ++restarts_;
      }
      EXPECT_EQ(chunk.first_position, track.num_computed) << "a position is left out or computed twice";
      const std::size_t end = chunk.first_position + chunk.num_tokens;
      const std::size_t length = scheduler_.tokens(chunk.sequence).size();
      EXPECT_LE(end, length);
      EXPECT_EQ(chunk.reaches_end, end == length);
      if (chunk.is_decode) {
        EXPECT_EQ(chunk.num_tokens, 1u);
        EXPECT_FALSE(prefills_began) << "decodes come first";
      } else {
        prefills_began = true;
        if (options_.prefill_chunk != 0) {
          EXPECT_LE(chunk.num_tokens, options_.prefill_chunk);
        }
      }
      const auto& table = scheduler_.stretches(chunk.sequence);
      EXPECT_GE(table.size() * options_.block_size, end);
      for (const std::uint32_t block : table) EXPECT_TRUE(blocks.insert(block).second) << "block " << block << " has two owners";
      num_tokens += chunk.num_tokens;
    }
    EXPECT_LE(num_tokens, options_.max_num_batched_tokens);
    EXPECT_LE(scheduler_.num_running(), options_.max_num_seqs);
  }

  SchedulerOptions options_;
  Scheduler scheduler_;
  std::map<SequenceId, Track> sequences_;
  std::set<SequenceId> admitted_;
  std::vector<SequenceId> admissions_;
  std::size_t steps_ = 0;
  std::size_t restarts_ = 0;
};

TEST(Scheduler, RandomArrivalsAllFinishWithinEveryLimit) {
  std::mt19937 random(17);
  std::uint64_t preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    SchedulerOptions options = options_with(1 + random() % 10, 1 + random() % 40, 8 + random() % 24, 1 + random() % 8);
    options.prefill_chunk = random() % 3 == 0 ? 0 : 1 + random() % 16;
    options.preempt_every = random() % 3 == 0 ? 1 + random() % 5 : 0;
    const std::size_t longest = options.num_blocks * options.block_size;
    Simulation simulation(options);
    std::size_t to_come = 1 + random() % 40;
    while (to_come > 0 || !simulation.idle()) {
      while (to_come > 0 && (simulation.idle() || random() % 3 == 0)) {
        const std::size_t prompt = 1 + random() % (longest - 1);
        simulation.add(prompt, 1 + random() % (longest - prompt));
        --to_come;
      }
      simulation.step();
      ASSERT_FALSE(HasFailure()) << "round " << round;
      ASSERT_LT(simulation.steps(), 500'000u) << "no end in sight";
    }
    EXPECT_TRUE(std::is_sorted(simulation.admissions().begin(), simulation.admissions().end())) << "first come, first served";
    preemptions += simulation.scheduler().num_preemptions();
  }
  EXPECT_GT(preemptions, 1000u) << "the pools are not tight enough to test anything";
}

TEST(Scheduler, DecodesGoOnWhileALongPromptIsChunked) {
  SchedulerOptions options = options_with(4, 8, 100);
  Scheduler scheduler(options);
  std::vector<ScheduledChunk> chunks;
  const SequenceId first = scheduler.add({1, 2, 3}, 20);
  scheduler.schedule(chunks);
  scheduler.advance();
  scheduler.append(first, 4);
  const SequenceId second = scheduler.add(std::vector<TokenId>(20, 1), 30);
  std::vector<std::uint32_t> prefill;
  for (int step = 0; step < 3; ++step) {
    scheduler.schedule(chunks);
    ASSERT_EQ(chunks.size(), 2u);
    EXPECT_EQ(chunks[0].sequence, first);
    EXPECT_TRUE(chunks[0].is_decode);
    EXPECT_EQ(chunks[1].sequence, second);
    prefill.push_back(chunks[1].num_tokens);
    EXPECT_EQ(chunks[1].reaches_end, step == 2);
    scheduler.advance();
    scheduler.append(first, 5);
  }
  EXPECT_EQ(prefill, (std::vector<std::uint32_t>{7, 7, 6}));
}

TEST(Scheduler, TheYoungestGoesBackAndKeepsItsTokens) {
  Scheduler scheduler(options_with(4, 64, 4));  // 16 positions
  std::vector<ScheduledChunk> chunks;
  const SequenceId old_one = scheduler.add({1, 2, 3, 4, 5, 6}, 16);
  scheduler.schedule(chunks);
  scheduler.advance();
  scheduler.append(old_one, 9);
  const SequenceId young_one = scheduler.add({7, 7, 7}, 10);
  while (scheduler.num_preemptions() == 0) {
    scheduler.schedule(chunks);
    scheduler.advance();
    for (const ScheduledChunk& chunk : chunks) scheduler.append(chunk.sequence, 9);
    ASSERT_LT(scheduler.tokens(old_one).size(), 16u);
  }
  EXPECT_EQ(scheduler.num_waiting(), 1u);
  EXPECT_TRUE(scheduler.stretches(young_one).empty());
  EXPECT_GT(scheduler.tokens(young_one).size(), 3u);
  const std::size_t kept = scheduler.tokens(young_one).size();
  scheduler.remove(old_one);
  scheduler.schedule(chunks);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].sequence, young_one);
  EXPECT_EQ(chunks[0].first_position, 0u);
  EXPECT_EQ(chunks[0].num_tokens, kept);
  EXPECT_TRUE(chunks[0].reaches_end);
  EXPECT_FALSE(chunks[0].is_decode);
}

/// Computes whatever is there until no sequence has a prompt left; answers are made of `token`.
void run_steps(Scheduler& scheduler, int count, TokenId token) {
  std::vector<ScheduledChunk> chunks;
  for (int step = 0; step < count; ++step) {
    scheduler.schedule(chunks);
    scheduler.advance();
    for (const ScheduledChunk& chunk : chunks) {
      if (chunk.reaches_end) scheduler.append(chunk.sequence, token);
    }
  }
}

TEST(Scheduler, ASequenceStartsBehindTheBeginningThatIsInTheCache) {
  SchedulerOptions options = options_with(4, 64, 16);
  options.prefix_caching = true;
  Scheduler scheduler(options);
  const SequenceId first = scheduler.add({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20);
  run_steps(scheduler, 1, 10);
  const SequenceId alike = scheduler.add({1, 2, 3, 4, 5, 6, 7, 8, 30, 31}, 20);
  const SequenceId whole = scheduler.add({1, 2, 3, 4, 5, 6, 7, 8}, 20);  // its last token is computed all the same
  const SequenceId other_group = scheduler.add({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20, 1);
  std::vector<ScheduledChunk> chunks;
  scheduler.schedule(chunks);
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[1].sequence, alike);
  EXPECT_EQ(chunks[1].first_position, 8u);
  EXPECT_EQ(chunks[2].sequence, whole);
  EXPECT_EQ(chunks[2].first_position, 4u);
  EXPECT_EQ(chunks[3].sequence, other_group);
  EXPECT_EQ(chunks[3].first_position, 0u);
  EXPECT_EQ(scheduler.num_cached_tokens(), 12u);
  const auto begins = [&](SequenceId id) { return scheduler.stretches(id)[0]; };
  EXPECT_EQ(begins(alike), begins(first));
  EXPECT_EQ(begins(whole), begins(first));
  EXPECT_NE(begins(other_group), begins(first));
}

TEST(Scheduler, WhatWasSentBackFindsItsOwnBlocksAgain) {
  SchedulerOptions options = options_with(4, 64, 16);
  options.prefix_caching = true;
  options.preempt_every = 6;
  Scheduler scheduler(options);
  const SequenceId only = scheduler.add({1, 2, 3}, 30);
  run_steps(scheduler, 5, 9);
  std::vector<ScheduledChunk> chunks;
  scheduler.schedule(chunks);
  EXPECT_EQ(scheduler.num_preemptions(), 1u);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].first_position, 4u);
  EXPECT_EQ(chunks[0].num_tokens, scheduler.tokens(only).size() - 4);
}

TEST(Scheduler, BlocksThatNoQueryCanSeeAreGivenBack) {
  SchedulerOptions options = options_with(4, 512, 64);
  options.tables = {.whole = 0, .sliding = 1};
  options.window = 10;
  options.prefix_caching = true;  // has no effect then
  Scheduler scheduler(options);
  const SequenceId only = scheduler.add(std::vector<TokenId>(70, 1), 250);
  std::size_t length = 70;
  std::size_t most_held = 0;
  for (run_steps(scheduler, 1, 2), ++length; length < 249; ++length) {
    // The next query stands at length - 1 and sees back to length - 10; spans of 64 positions below that are not read any more.
    const std::size_t unseen = (length - 10) / 64 * 16;
    const std::size_t held = (length - 1 + 3) / 4 - unseen;
    EXPECT_EQ(scheduler.num_free_blocks(), 64 - held) << length;
    most_held = std::max(most_held, held);
    run_steps(scheduler, 1, 2);
  }
  EXPECT_LE(most_held, 19u);
  EXPECT_EQ(scheduler.stretches(only).size(), 62u) << "entries stay at their positions";
  scheduler.remove(only);
  EXPECT_EQ(scheduler.num_free_blocks(), 64u);
}

TEST(Scheduler, SlidingTablesGiveBackTheirBlocksWhereOthersKeepThem) {
  for (const bool prefix_caching : {false, true}) {
    SchedulerOptions options = options_with(4, 512, 320);
    options.tables = {.whole = 2, .sliding = 3};
    options.window = 10;
    options.prefix_caching = prefix_caching;
    Scheduler scheduler(options);
    const SequenceId only = scheduler.add(std::vector<TokenId>(70, 1), 250);
    std::size_t length = 70;
    for (run_steps(scheduler, 1, 2), ++length; length < 249; ++length) {
      const std::size_t unseen = (length - 10) / 64 * 16, stretches = (length - 1 + 3) / 4;
      EXPECT_EQ(scheduler.num_free_blocks(), 320 - 5 * stretches + 3 * unseen) << length;
      run_steps(scheduler, 1, 2);
    }
    std::vector<std::uint32_t> tables;
    scheduler.append_block_tables(only, 248, tables);
    ASSERT_EQ(tables.size(), 5u * 62u);
    std::set<std::uint32_t> held(tables.begin(), tables.begin() + 2 * 62);
    for (std::size_t table = 2; table < 5; ++table) {
      for (std::size_t i = 48; i < 62; ++i) held.insert(tables[table * 62 + i]);
    }
    EXPECT_EQ(held.size(), 2u * 62 + 3 * 14) << "no block stands in two places that are read";
    scheduler.remove(only);
    EXPECT_EQ(scheduler.num_free_blocks(), 320u);
  }
}

TEST(Scheduler, ABeginningIsSharedUpToWhereItsWindowIsKnown) {
  struct Case {
    std::size_t other, known;  // tokens of another sequence that takes blocks away, and positions that are found then
  };
  // 131 tokens: 32 stretches are published, and the window of 10 reaches back to the span from 64 on, the 16th. Sliding blocks below are
  // the first that go, then stretches from the last one on. 50 blocks: 16 are free, 16 sliding, and 9 stretches. 70 blocks: 16 are free,
  // and of the first 10 stretches only the whole tables are left.
  for (const Case& c : {Case{1, 128}, Case{100, 92}, Case{140, 0}}) {
    SchedulerOptions options = options_with(4, 512, 80);
    options.tables = {.whole = 1, .sliding = 1};
    options.window = 10;
    options.prefix_caching = true;
    Scheduler scheduler(options);
    std::vector<TokenId> tokens(131);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
    const SequenceId first = scheduler.add(tokens, 150);
    run_steps(scheduler, 1, 2);
    std::vector<ScheduledChunk> chunks;
    const SequenceId alike = scheduler.add(tokens, 150);
    scheduler.schedule(chunks);
    ASSERT_EQ(chunks.size(), 2u);
    EXPECT_EQ(chunks[1].first_position, 128u) << "nothing was taken away";
    scheduler.advance();
    scheduler.remove(first);
    scheduler.remove(alike);
    EXPECT_EQ(scheduler.num_free_blocks(), 80u);
    const SequenceId other = scheduler.add(std::vector<TokenId>(c.other, 200), c.other + 2);
    run_steps(scheduler, 1, 2);
    scheduler.remove(other);
    const SequenceId again = scheduler.add(tokens, 150);
    scheduler.schedule(chunks);
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_EQ(chunks[0].first_position, c.known);
    scheduler.advance();
    scheduler.remove(again);
    EXPECT_EQ(scheduler.num_free_blocks(), 80u);
  }
}

TEST(Scheduler, WhatCanNeverFitIsRefused) {
  Scheduler scheduler(options_with(4, 64, 4));
  EXPECT_THROW(scheduler.add(std::vector<TokenId>(17, 1), 17), std::invalid_argument);
  EXPECT_THROW(scheduler.add({1}, 18), std::invalid_argument);
  EXPECT_NO_THROW(scheduler.add({1}, 17)) << "the last token of an answer is never computed";
  EXPECT_THROW(scheduler.add({}, 3), std::invalid_argument);
  EXPECT_THROW(scheduler.add({1}, std::size_t{1} << 40), std::invalid_argument);
  SchedulerOptions options = options_with(0, 64, 4);
  EXPECT_THROW(Scheduler{options}, std::invalid_argument);
}

TEST(Scheduler, RemovalFreesEverything) {
  Scheduler scheduler(options_with(4, 64, 8));
  std::vector<ScheduledChunk> chunks;
  scheduler.add({1, 2, 3}, 5);
  scheduler.add({1, 2, 3}, 5);
  scheduler.schedule(chunks);
  EXPECT_LT(scheduler.num_free_blocks(), 8u);
  scheduler.add({1}, 5);
  scheduler.remove_all();
  EXPECT_EQ(scheduler.num_free_blocks(), 8u);
  EXPECT_EQ(scheduler.num_running() + scheduler.num_waiting(), 0u);
  scheduler.schedule(chunks);
  EXPECT_TRUE(chunks.empty());
  EXPECT_THROW(scheduler.remove(1), std::logic_error);
}

TEST(Scheduler, MisuseIsAnError) {
  Scheduler scheduler(options_with(4, 64, 8));
  std::vector<ScheduledChunk> chunks;
  const SequenceId id = scheduler.add({1, 2, 3}, 5);
  EXPECT_THROW(scheduler.advance(), std::logic_error);
  EXPECT_THROW(scheduler.append(id, 1), std::logic_error);
  scheduler.schedule(chunks);
  EXPECT_THROW(scheduler.schedule(chunks), std::logic_error);
  scheduler.advance();
  EXPECT_THROW(scheduler.schedule(chunks), std::logic_error) << "neither appended nor removed";
  scheduler.append(id, 1);
  EXPECT_THROW(scheduler.append(id, 1), std::logic_error);
}

}  // namespace
}  // namespace lockstep::engine
