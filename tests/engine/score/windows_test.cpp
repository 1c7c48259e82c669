#include "engine/score/windows.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::engine {

void PrintTo(const ScoreWindow& window, std::ostream* out) {
  *out << "[" << window.begin << ", " << window.end << ") from " << window.first_scored;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ScoreWindows, ATextThatFitsIsOne) {
  EXPECT_THAT(score_windows(10, 10, 5), ElementsAre(ScoreWindow{0, 10, 1}));
  EXPECT_THAT(score_windows(2, 100, 1), ElementsAre(ScoreWindow{0, 2, 1}));
  EXPECT_THAT(score_windows(1, 100, 1), IsEmpty());
  EXPECT_THAT(score_windows(0, 100, 1), IsEmpty());
}

TEST(ScoreWindows, OverlapByWindowMinusStride) {
  EXPECT_THAT(score_windows(10, 4, 2),
              ElementsAre(ScoreWindow{0, 4, 1}, ScoreWindow{2, 6, 4}, ScoreWindow{4, 8, 6}, ScoreWindow{6, 10, 8}));
  EXPECT_THAT(score_windows(9, 4, 3), ElementsAre(ScoreWindow{0, 4, 1}, ScoreWindow{3, 7, 4}, ScoreWindow{6, 9, 7}));
}

TEST(ScoreWindows, OfTheFirstTokenOfAWindowThatDoesNotOverlapNothingIsKnown) {
  EXPECT_THAT(score_windows(8, 4, 4), ElementsAre(ScoreWindow{0, 4, 1}, ScoreWindow{4, 8, 5}));
  EXPECT_THAT(score_windows(9, 4, 4), ElementsAre(ScoreWindow{0, 4, 1}, ScoreWindow{4, 8, 5}));
}

TEST(ScoreWindows, ScoreEachTokenOnceWithAllTheContextThatTheWindowHas) {
  for (std::size_t num_tokens = 2; num_tokens < 40; ++num_tokens) {
    for (std::size_t window = 2; window < 12; ++window) {
      for (std::size_t stride = 1; stride < window; ++stride) {
        std::size_t next = 1;
        for (const ScoreWindow& one : score_windows(num_tokens, window, stride)) {
          EXPECT_EQ(one.first_scored, next);
          EXPECT_GT(one.first_scored, one.begin);
          EXPECT_LE(one.end - one.begin, window);
          EXPECT_EQ(one.begin % stride, 0u);
          if (one.begin > 0) {
            EXPECT_GE(one.first_scored - one.begin, window - stride);
          }
          next = one.end;
        }
        EXPECT_EQ(next, num_tokens);
      }
    }
  }
}

TEST(ScoreWindows, WhatCanNotBeIsRefused) {
  EXPECT_THROW(score_windows(10, 1, 1), std::invalid_argument);
  EXPECT_THROW(score_windows(10, 4, 0), std::invalid_argument);
  EXPECT_THROW(score_windows(10, 4, 5), std::invalid_argument);
  EXPECT_THROW(rolling_windows(10, 0), std::invalid_argument);
}

TEST(RollingWindows, ScoreAllButTheFirstOnceBehindOneTokenAndTheLastBehindMore) {
  EXPECT_THAT(rolling_windows(5, 4), ElementsAre(ScoreWindow{0, 5, 1}));
  EXPECT_THAT(rolling_windows(9, 4), ElementsAre(ScoreWindow{0, 5, 1}, ScoreWindow{4, 9, 5}));
  EXPECT_THAT(rolling_windows(7, 4), ElementsAre(ScoreWindow{0, 5, 1}, ScoreWindow{2, 7, 5}));
  EXPECT_THAT(rolling_windows(3, 4), ElementsAre(ScoreWindow{0, 3, 1}));
  EXPECT_THAT(rolling_windows(1, 4), IsEmpty());
}

}  // namespace
}  // namespace lockstep::engine
