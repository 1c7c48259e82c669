// What an even thread and its helper agree on. One thread plays both where nobody has to wait.
#include "device/cpu/helper_pair.h"

#include <thread>

#include <gtest/gtest.h>

#include "device/cpu/thread_clock.h"

namespace lockstep::device::cpu {
namespace {

const Turn leaves_at_once{Turn::Time{}};

bool leaves_at(HelperPair& pair, std::uint32_t epoch) {
  bool slept = false;
  return pair.leaves_at(epoch, slept);
}

TEST(HelperPair, CallsTheHelperToTheBeginningWhereAllWalk) {
  HelperPair pair;
  pair.begin(Walk::kAll);
  EXPECT_FALSE(pair.alone());
  EXPECT_EQ(pair.wait_for_call(1, Spin::kShort), 0u);
  EXPECT_EQ(pair.missed(), 0u);
}

TEST(HelperPair, LeavesTheEvenThreadAloneWhileTheHelperRestsOrDoesNotAnswer) {
  HelperPair pair;
  pair.begin(Walk::kHalf);
  EXPECT_TRUE(pair.alone());
  pair.begin(Walk::kAsTheyCan);
  EXPECT_TRUE(pair.alone()) << "nobody is there to answer";
  for (std::uint32_t epoch = 1; epoch <= 3; ++epoch) pair.look_for_helper(epoch, epoch);
  EXPECT_TRUE(pair.alone());
  EXPECT_EQ(pair.parts(), 4u);
  EXPECT_EQ(pair.missed(), 4u);
}

TEST(HelperPair, TakesOverBehindTheBarrierAtWhichTheHelperLeavesAndNotBehindTheOneBefore) {
  HelperPair pair;
  pair.set_turn(leaves_at_once);
  pair.begin(Walk::kAll);
  pair.wait_for_call(1, Spin::kShort);
  EXPECT_TRUE(leaves_at(pair, 8));
  EXPECT_TRUE(pair.has_left());
  pair.look_for_helper(7, 30);
  EXPECT_FALSE(pair.alone());
  pair.look_for_helper(8, 40);
  EXPECT_TRUE(pair.alone());
  EXPECT_EQ(pair.parts(), 3u);
  EXPECT_EQ(pair.missed(), 1u);
  pair.call(50);
  EXPECT_EQ(pair.wait_for_call(2, Spin::kShort), 50u);
  EXPECT_FALSE(pair.has_left());
  pair.look_for_helper(9, 60);
  EXPECT_FALSE(pair.alone()) << "it left once";
}

TEST(HelperPair, StaysWhileItsTurnLasts) {
  HelperPair pair;
  pair.set_turn(Turn(std::chrono::hours(24 * 365 * 100)));  // the clock counts from the start of the machine
  pair.begin(Walk::kAll);
  pair.wait_for_call(1, Spin::kShort);
  for (std::uint32_t epoch = 1; epoch <= 100; ++epoch) EXPECT_FALSE(leaves_at(pair, epoch));
  EXPECT_FALSE(pair.has_left());
}

TEST(HelperPair, CallsAHelperThatIsBackToTheEntryBehindTheBarrier) {
  HelperPair pair;
  pair.set_turn(leaves_at_once);
  constexpr std::uint32_t kCalls = 20;
  EpochFlag arrivals;  // the barriers: all that orders what the two write
  std::size_t places[kCalls + 1] = {}, called_to[kCalls + 1] = {};
  std::thread helper([&] {
    pair.enter();
    for (std::uint32_t number = 1; number <= kCalls; ++number) {
      places[number] = pair.wait_for_call(number, Spin::kLong);
      leaves_at(pair, number);
      arrivals.publish(number);
      pair.give_way();
    }
  });
  std::uint32_t number = 0;
  const auto end = now() + std::chrono::seconds(60);
  for (std::size_t place = 0; number < kCalls && now() < end; ++place) {
    std::chrono::nanoseconds waited{};
    if (number > 0) arrivals.wait(number, Spin::kLong, waited);
    const bool was_alone = pair.alone() || place == 0, begins = was_alone && place % 1000 == 0;  // which wakes a helper that sleeps
    if (begins) {
      pair.begin(Walk::kAsTheyCan);
    } else {
      pair.look_for_helper(number, place);
    }
    if (was_alone && !pair.alone()) called_to[++number] = begins ? 0 : place;
  }
  EXPECT_EQ(number, kCalls) << "it was not called that often in a minute";
  for (; number < kCalls; ++number) pair.call(0);
  helper.join();
  for (number = 1; number <= kCalls; ++number) EXPECT_EQ(places[number], called_to[number]) << number;
}

}  // namespace
}  // namespace lockstep::device::cpu
