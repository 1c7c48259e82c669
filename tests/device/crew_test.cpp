// When helpers walk along, by made-up times.
#include "device/cpu/crew.h"

#include <gtest/gtest.h>

namespace lockstep::device::cpu {
namespace {

using std::chrono::milliseconds, std::chrono::microseconds;

/// Steps that compute for 3 ms and take `wall`.
WalkReport step(milliseconds wall, milliseconds kept_off = {}, std::size_t missed = 0) {
  return {.wall = wall, .computed = milliseconds(3), .kept_off = kept_off, .parts = 100, .missed = missed};
}

void note(Crew& crew, int times, const WalkReport& report) {
  for (int i = 0; i < times; ++i) crew.note(report);
}

/// Notes steps until they are walked otherwise; returns how many it took.
int steps_until(Crew& crew, Walk walk, const WalkReport& report) {
  for (int steps = 0; steps < 10'000; ++steps) {
    if (crew.next() == walk) return steps;
    crew.note(report);
  }
  return -1;
}

TEST(Crew, LetsAllWalkWhileNobodyIsInTheWay) {
  Crew crew;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(crew.next(), Walk::kAll);
    crew.note(step(milliseconds(i % 10 == 0 ? 4 : 3)));
  }
}

TEST(Crew, DoesNotMindASingleHiccup) {
  Crew crew;
  for (int i = 0; i < 50; ++i) {
    note(crew, 9, step(milliseconds(3)));
    crew.note(step(milliseconds(100)));
    ASSERT_EQ(crew.next(), Walk::kAll);
  }
}

TEST(Crew, LetsHelpersComeAndGoOnceStepsTakeMuchLongerThanTheyCompute) {
  Crew crew;
  EXPECT_LE(steps_until(crew, Walk::kHalf, step(milliseconds(8))), 8);
  EXPECT_LE(steps_until(crew, Walk::kAsTheyCan, step(milliseconds(6))), 2) << "soon: the busy process has moved by then";
  for (int i = 0; i < 100; ++i) {
    crew.note(step(milliseconds(4), {}, 50));
    ASSERT_EQ(crew.next(), Walk::kAsTheyCan) << "as long as helpers are away";
  }
}

TEST(Crew, LetsAllWalkAgainOnceHelpersAreAlwaysThere) {
  Crew crew;
  steps_until(crew, Walk::kAsTheyCan, step(milliseconds(8)));
  EXPECT_EQ(steps_until(crew, Walk::kAll, step(milliseconds(3), {}, 50)), -1);
  const int steps = steps_until(crew, Walk::kAll, step(milliseconds(3), {}, 2));
  EXPECT_GT(steps, 10) << "one turn without interruption says nothing";
  EXPECT_LT(steps, 40) << "in a tenth of a second";
}

TEST(Crew, LetsHelpersSleepWhileAnEvenThreadIsKeptOffButNotInVain) {
  Crew crew;
  steps_until(crew, Walk::kAsTheyCan, step(milliseconds(8)));
  const WalkReport disturbed = step(milliseconds(6), milliseconds(3));
  int before = 0;
  for (int round = 0; round < 5; ++round) {  // it does not help: ever more seldom
    const int steps = steps_until(crew, Walk::kHalf, disturbed);
    EXPECT_GT(steps, before);
    before = steps;
    steps_until(crew, Walk::kAsTheyCan, disturbed);
  }
  note(crew, 400, step(milliseconds(4), {}, 50));  // it helped
  EXPECT_LE(steps_until(crew, Walk::kHalf, disturbed), 8);
}

TEST(Turn, IsEndlessUntilItIsInterrupted) {
  Turn turn;
  turn.begin(milliseconds(5));
  EXPECT_FALSE(turn.nearly_over(milliseconds(5) + std::chrono::minutes(50)));
}

TEST(Turn, EndsALittleBeforeTheNextInterruption) {
  Turn turn;
  turn.begin(milliseconds(100));
  turn.interrupted(milliseconds(104), milliseconds(108));
  EXPECT_FALSE(turn.nearly_over(milliseconds(110)));
  EXPECT_TRUE(turn.nearly_over(milliseconds(111)));
  for (int i = 0; i < 5; ++i) turn.yielded(milliseconds(112), milliseconds(116));
  EXPECT_FALSE(turn.nearly_over(milliseconds(116) + microseconds(3000))) << "it tries to get more, little by little";
  EXPECT_TRUE(turn.nearly_over(milliseconds(120)));
}

TEST(Turn, ForgetsAnInterruptionThatCameTooEarly) {
  Turn turn;
  turn.interrupted(milliseconds(4), milliseconds(8));
  turn.interrupted(milliseconds(8) + microseconds(100), milliseconds(9));
  EXPECT_FALSE(turn.nearly_over(milliseconds(11) + microseconds(600))) << "something short came between";
  EXPECT_TRUE(turn.nearly_over(milliseconds(11) + microseconds(700)));
}

TEST(Turn, IsEndlessAgainOnceNobodyElseWantsTheProcessor) {
  Turn turn;
  turn.interrupted(milliseconds(4), milliseconds(8));
  for (int i = 0; i < 10; ++i) turn.yielded(milliseconds(20), milliseconds(20) + microseconds(1));
  EXPECT_FALSE(turn.nearly_over(milliseconds(3000)));
}

}  // namespace
}  // namespace lockstep::device::cpu
