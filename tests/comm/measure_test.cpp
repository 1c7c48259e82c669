#include "comm/measure.h"

#include <gtest/gtest.h>

#include "tests/comm/rank_runner.h"

namespace lockstep::comm {
namespace {

TEST(Measure, EveryRankGetsTheTimesOfTheSlowest) {
  std::vector<TransportTimes> times(3);
  const Outcomes outcomes = run_threads(3, {}, [&](Communicator& communicator) {
    times[static_cast<std::size_t>(communicator.rank())] = measure_transport(communicator, {4096, 65536});
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  EXPECT_EQ(times[0].transports, std::vector<std::string>{"threads"});
  ASSERT_EQ(times[0].seconds.at(0).size(), 2u);
  for (const double seconds : times[0].seconds[0]) EXPECT_GT(seconds, 0.0);
  for (const TransportTimes& other : times) EXPECT_EQ(other.seconds, times[0].seconds);
}

TEST(Measure, StopsAtASizeThatTakesTooLong) {
  const Outcomes outcomes = run_threads(2, {}, [](Communicator& communicator) {
    // Rank 1 alone is slow: both must stop there.
    const auto time_calls = [&](std::size_t count, int calls) { return (communicator.rank() == 1 && count == 2 ? 0.3 : 1e-3) * calls; };
    const std::vector<std::size_t> sizes{4, 8, 16};
    EXPECT_EQ(measure_sizes(communicator, sizes, time_calls), (std::vector<double>{1e-3, 0.3, 0.0}));
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

TEST(Measure, TheTreeAddsAPowerOfTwoFirst) {
  const TreeSum tree = one_root_each(5);
  EXPECT_EQ(tree.roots_per_rank, (std::vector<std::uint32_t>{1, 1, 1, 1, 1}));
  EXPECT_EQ(tree.merges, (std::vector<TreeSum::Merge>{{0, 1}, {2, 3}, {0, 2}, {0, 4}}));
  EXPECT_TRUE(one_root_each(1).merges.empty());
}

}  // namespace
}  // namespace lockstep::comm
