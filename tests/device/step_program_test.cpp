#include "device/cpu/step_program.h"

#include <array>
#include <chrono>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "device/cpu/row_copies.h"

namespace lockstep::device::cpu {
namespace {

using Use = Access::Use;

/// Barriers of a program of ops that do nothing but touch buffers.
std::size_t barriers_of(const std::vector<std::vector<Access>>& ops) {
  ThreadPool pool(2);
  StepProgram program;
  for (const auto& accesses : ops) program.add(accesses, [](std::size_t) {});
  program.run(pool);
  EXPECT_TRUE(program.empty());
  return program.barriers();
}

const int x = 0, y = 0, shares = 0, other_shares = 0;

TEST(StepProgram, PutsABarrierWhereAnotherThreadMayHaveWrittenWhatIsRead) {
  EXPECT_EQ(barriers_of({{{&x, Use::kWrite}}, {{&x, Use::kRead}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWrite}}, {{&y, Use::kRead}}}), 0u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWrite}}, {{&x, Use::kReadCopy}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWriteCopy}}, {{&x, Use::kRead}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWrite}}, {{&x, Use::kRead}}, {{&x, Use::kRead}}}), 1u) << "one barrier serves all later readers";
}

TEST(StepProgram, PutsABarrierWhereAnotherThreadMayStillRead) {
  EXPECT_EQ(barriers_of({{{&x, Use::kRead}}, {{&x, Use::kWrite}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kRead}}, {{&x, Use::kWriteCopy}}}), 1u) << "thread 0's copy is the buffer itself";
  EXPECT_EQ(barriers_of({{{&x, Use::kReadCopy}}, {{&x, Use::kWrite}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kRead}}, {{&x, Use::kRead}}}), 0u);
}

TEST(StepProgram, NeedsNoBarrierForCopiesForSeparatePartsAndForAThreadsOwnShare) {
  EXPECT_EQ(barriers_of({{{&x, Use::kWriteCopy}}, {{&x, Use::kReadCopy}}, {{&x, Use::kWriteCopy}}}), 0u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart}}, {{&x, Use::kWritePart}}}), 0u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart}}, {{&x, Use::kWrite}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart, &shares}}, {{&x, Use::kRead, &shares}}}), 0u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart, &shares}}, {{&x, Use::kRead, &other_shares}}}), 1u);
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart, &shares}}, {{&x, Use::kWritePart, &other_shares}}, {{&x, Use::kRead, &shares}}}), 1u);
}

TEST(StepProgram, LetsThreadsArriveOnlyBeforeAnOpThatWaitsItself) {
  const auto meetings_of = [](Use write, Use read) {
    ThreadPool pool(2);
    StepProgram program;
    program.add(std::array<Access, 1>{{{&x, write}}}, [](std::size_t) {});
    program.add(std::array<Access, 1>{{{&x, read}}}, [](std::size_t) {});
    program.run(pool);
    return std::pair(program.barriers(), program.arrivals());
  };
  EXPECT_EQ(meetings_of(Use::kWritePart, Use::kReadAwaited), std::pair(std::size_t{0}, std::size_t{1}));
  EXPECT_EQ(meetings_of(Use::kWrite, Use::kReadAwaited), std::pair(std::size_t{1}, std::size_t{0})) << "who wrote what is not known";
  EXPECT_EQ(meetings_of(Use::kWriteCopy, Use::kReadAwaited), std::pair(std::size_t{1}, std::size_t{0}));
  EXPECT_EQ(meetings_of(Use::kRead, Use::kReadAwaited), std::pair(std::size_t{0}, std::size_t{0}));
  EXPECT_EQ(barriers_of({{{&x, Use::kWritePart}}, {{&x, Use::kReadAwaited}}, {{&x, Use::kRead}}}), 1u) << "who does not wait itself";
  EXPECT_EQ(barriers_of({{{&x, Use::kReadAwaited}}, {{&x, Use::kWritePart}}}), 1u);
}

/// What ops with every kind of meeting leave behind, `rounds` programs of them walked as `walks` says in turn. Helpers leave at every
/// barrier.
std::vector<std::size_t> results_of(std::size_t threads, const std::vector<Walk>& walks, std::size_t rounds) {
  ThreadPool pool(threads, {}, false, Turn(Turn::Time{}));
  StepProgram program;
  std::vector<std::size_t> values(threads, 1), sums(threads, 0), entered(threads, 0);
  const auto sum_of = [&values] { return std::accumulate(values.begin(), values.end(), std::size_t{0}); };
  for (std::size_t round = 0; round < rounds; ++round) {
    for (int op = 0; op < 5; ++op) {
      program.add(std::array<Access, 1>{{{&x, Use::kWritePart}}}, [&](std::size_t share) {
        values[share] = values[share] * 31 + sums[(share + 1) % threads] + share;
        ++entered[share];
      });
      for (int piece = 0; piece < 2; ++piece) program.add_piece([&](std::size_t share) { values[share] += share; });
      program.add(std::array<Access, 1>{{{&x, Use::kReadAwaited}}}, [&](std::size_t share) {
        pool.await_others(share);
        sums[share] = sum_of() * (share + 1);
      });
      program.add(std::array<Access, 1>{{{&x, Use::kWrite}}}, [&](std::size_t share) { values[share] ^= sums[share]; });
      program.add(std::array<Access, 1>{{{&x, Use::kRead}}}, [&](std::size_t share) { sums[share] += sum_of(); });
    }
    const WalkReport report = program.run(pool, walks[round % walks.size()]);
    EXPECT_EQ(program.barriers(), 14u);  // before each kWrite, kRead and, but for the first, kWritePart
    EXPECT_EQ(program.arrivals(), 5u);
    EXPECT_EQ(program.openings(), 10u);
    EXPECT_LE(report.missed, report.parts);
    if (round % 7 == 0) pool.run([&](std::size_t thread) { ++entered[thread]; });
  }
  EXPECT_EQ(entered, std::vector<std::size_t>(threads, 5 * rounds + (rounds + 6) / 7));
  values.insert(values.end(), sums.begin(), sums.end());
  return values;
}

TEST(StepProgram, GivesTheSameResultsWhoeverWalksIt) {
  constexpr std::size_t kRounds = 200;
  for (const std::size_t threads : {1, 2, 3, 4, 5, 9}) {
    const auto expected = results_of(threads, {Walk::kAll}, kRounds);
    EXPECT_EQ(results_of(threads, {Walk::kHalf}, kRounds), expected) << threads << " threads";
    EXPECT_EQ(results_of(threads, {Walk::kAsTheyCan}, kRounds), expected) << threads << " threads";
    EXPECT_EQ(results_of(threads, {Walk::kAll, Walk::kHalf, Walk::kAsTheyCan, Walk::kAsTheyCan, Walk::kHalf}, kRounds), expected)
        << threads << " threads";
  }
}

TEST(StepProgram, LetsHelpersComeAndGoBetweenThePiecesOfALongOp) {
  ThreadPool pool(2);
  StepProgram program;
  for (const auto& [walk, parts] : {std::pair(Walk::kAll, std::size_t{1}), std::pair(Walk::kAsTheyCan, std::size_t{4})}) {
    program.add(std::array<Access, 1>{{{&x, Use::kWrite}}}, [](std::size_t) {});
    for (int piece = 0; piece < 3; ++piece) program.add_piece([](std::size_t) {});
    EXPECT_EQ(program.run(pool, walk).parts, parts);
    EXPECT_EQ(program.openings(), 3u);
    EXPECT_EQ(program.barriers(), 0u);
  }
}

TEST(StepProgram, SaysHowAWalkWent) {
  ThreadPool pool(2);
  StepProgram program;
  std::array<std::thread::id, 2> walkers;
  const auto walk = [&](Walk how) {
    program.add(std::array<Access, 1>{{{&x, Use::kWrite}}}, [&](std::size_t share) {
      walkers[share] = std::this_thread::get_id();
      if (share == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    program.add(std::array<Access, 1>{{{&x, Use::kRead}}}, [](std::size_t) {});
    return program.run(pool, how);
  };
  const WalkReport all = walk(Walk::kAll);
  EXPECT_NE(walkers[0], walkers[1]);
  EXPECT_GE(all.wall, std::chrono::milliseconds(20));
  EXPECT_LT(all.computed, std::chrono::milliseconds(15)) << "to wait for the helper is no computing";
  EXPECT_LT(all.kept_off, std::chrono::milliseconds(15)) << "it was not kept off its processor either";
  EXPECT_EQ(all.missed, 0u);
  const WalkReport half = walk(Walk::kHalf);
  EXPECT_EQ(walkers[0], walkers[1]);
  EXPECT_GE(half.kept_off, std::chrono::milliseconds(15)) << "it slept in an op";
}

TEST(StepProgram, LetsAThreadThatWaitsForTheOthersSeeWhatTheyWrote) {
  for (const std::size_t threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    StepProgram program;
    std::vector<std::size_t> values(threads, 0), sums(threads, 0);
    for (std::size_t round = 1; round <= 300; ++round) {
      for (int op = 0; op < 3; ++op) {
        program.add(std::array<Access, 1>{{{&x, Use::kWritePart}}}, [&values](std::size_t thread) { ++values[thread]; });
        program.add(std::array<Access, 1>{{{&x, Use::kReadAwaited}}}, [&values, &sums, &pool](std::size_t thread) {
          if (thread % 2 == 1) return;  // needs nothing of the others
          pool.await_others(thread);
          sums[thread] = std::accumulate(values.begin(), values.end(), std::size_t{0});
        });
        program.add(std::array<Access, 1>{{{&x, Use::kWrite}}}, [](std::size_t) {});
      }
      program.run(pool);
      ASSERT_EQ(program.arrivals(), 3u);
      for (std::size_t thread = 0; thread < threads; thread += 2) ASSERT_EQ(sums[thread], 3 * round * threads) << threads << " threads";
    }
  }
}

TEST(StepProgram, LetsEveryThreadSeeWhatTheOthersWroteBeforeABarrier) {
  for (const std::size_t threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    StepProgram program;
    std::vector<std::size_t> values(threads, 0), sums(threads, 0);
    for (std::size_t round = 1; round <= 300; ++round) {
      for (int op = 0; op < 3; ++op) {
        program.add(std::array<Access, 1>{{{&x, Use::kWrite}}}, [&values](std::size_t thread) { ++values[thread]; });
        program.add(std::array<Access, 1>{{{&x, Use::kRead}}},
                    [&values, &sums](std::size_t thread) { sums[thread] = std::accumulate(values.begin(), values.end(), std::size_t{0}); });
      }
      program.run(pool);
      ASSERT_EQ(sums, std::vector<std::size_t>(threads, 3 * round * threads)) << threads << " threads";
    }
  }
}

TEST(RowCopies, GiveThread0TheMatrixAndTheOthersMemoryOfTheirOwn) {
  RowCopies copies(3);
  std::array<float, 20> row{}, other{};
  const Matrix matrix{row.data(), 20, 1, Activation::kFloat32}, second{other.data(), 20, 1, Activation::kFloat32};
  EXPECT_EQ(copies.find(matrix).offset, RowPlace::kNone);
  const RowPlace place = copies.place(matrix, sizeof row), next = copies.place(second, sizeof other);
  EXPECT_EQ(copies.find(matrix).offset, RowPlace::kNone) << "not valid yet";
  copies.set_valid(matrix, true);
  EXPECT_EQ(copies.find(matrix).offset, place.offset);
  EXPECT_EQ(copies.at(place, 0).data, row.data());
  EXPECT_NE(copies.at(place, 1).data, copies.at(place, 2).data);
  EXPECT_NE(copies.at(place, 1).data, copies.at(next, 1).data);
  copies.invalidate_all();
  EXPECT_EQ(copies.find(matrix).offset, RowPlace::kNone);
}

}  // namespace
}  // namespace lockstep::device::cpu
