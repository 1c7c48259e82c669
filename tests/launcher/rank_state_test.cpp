// Who holds a job up, by made-up times.
#include "launcher/rank_state.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using std::chrono::seconds, std::chrono::milliseconds;
using Time = Rank::Clock::time_point;

const Time started{seconds(1000)};
constexpr milliseconds kTimeout{10'000};

Rank running(std::uint64_t step, seconds moved, seconds heard) {
  Rank rank;
  rank.state = Rank::State::kRunning;
  rank.at = {step, "layer 3 down_proj"};
  rank.last_moved = started + moved;
  rank.last_heard = started + heard;
  return rank;
}

std::string stall(const std::vector<Rank>& ranks, seconds now, milliseconds timeout = kTimeout) {
  return stall_of(ranks, started + now, started, timeout).value_or("");
}

TEST(StallOf, ARankThatDoesNotStartIsNamedAfterTwoMinutes) {
  const std::vector<Rank> ranks{running(1, seconds(119), seconds(120)), Rank{}};
  EXPECT_EQ(stall(ranks, seconds(120)), "");
  EXPECT_EQ(stall(ranks, seconds(121)), "rank 1 did not start within 120 s");
}

TEST(StallOf, ARankThatIsSilentIsNamedAndNeverBeforeThreeSeconds) {
  const std::vector<Rank> ranks{running(7, seconds(10), seconds(20)), running(7, seconds(10), seconds(10))};
  EXPECT_EQ(stall(ranks, seconds(20)), "");
  EXPECT_EQ(stall(ranks, seconds(21)), "rank 1 is stuck: nothing was heard from it for 11.0 s (step 7, layer 3 down_proj)");
  EXPECT_EQ(stall(ranks, seconds(13), milliseconds(1)), "");
}

TEST(StallOf, OfRanksThatAllStandStillTheOneThatMovedFirstIsNamed) {
  std::vector<Rank> ranks{running(7, seconds(12), seconds(26)), running(7, seconds(11), seconds(26))};
  EXPECT_EQ(stall(ranks, seconds(24)), "") << "ranks tell of a late peer themselves, before that";
  EXPECT_EQ(stall(ranks, seconds(26)), "rank 1 is stuck: it has not moved for 15.0 s (step 7, layer 3 down_proj)");
  ranks[0].at.step = 6;
  EXPECT_EQ(stall(ranks, seconds(26)), "rank 0 is stuck: it has not moved for 14.0 s (step 6, layer 3 down_proj)");
  ranks[0].at.step = 0;
  EXPECT_EQ(stall(ranks, seconds(26)), "") << "before the first step a rank may take as long as it needs";
}

TEST(StallOf, RanksThatHaveLeftHoldNobodyUp) {
  Rank gone = running(7, seconds(0), seconds(0)), left = gone;
  gone.state = Rank::State::kGone;
  left.state = Rank::State::kSaidBye;
  EXPECT_EQ(stall({gone, left}, seconds(500)), "");
}

TEST(Place, SaysWhereARankStands) {
  Rank rank;
  EXPECT_EQ(place(rank), "not started");
  rank.state = Rank::State::kRunning;
  EXPECT_EQ(place(rank), "start");
  rank.at = {0, "load weights"};
  EXPECT_EQ(place(rank), "load weights");
  rank.at.step = 12;
  EXPECT_EQ(place(rank), "step 12, load weights");
}

}  // namespace
}  // namespace lockstep::launcher
