#include "device/cpu/placement.h"

#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

namespace lockstep::device {
namespace {

using testing::ElementsAre;
using Sets = std::vector<std::vector<int>>;

/// 2 sockets of 4 cores of 2 hyperthreads: core c has processors 2c and 2c + 1.
const std::vector<Core>& two_sockets() {
  static const std::vector<Core> cores = cores_of_machine("pack:2 [numa] core:4 pu:2");
  return cores;
}

std::set<int> cores_of(const Placement& placement) {
  std::set<int> cores;
  for (const auto& processors : placement.processors) {
    for (const int processor : processors) cores.insert(processor / 2);
  }
  return cores;
}

std::vector<Placement> place_all(std::size_t num_ranks, std::size_t threads = 0) {
  std::vector<Placement> placements;
  for (std::size_t rank = 0; rank < num_ranks; ++rank)
    placements.push_back(place_rank(two_sockets(), {.rank = rank, .num_ranks = num_ranks, .threads = threads}));
  return placements;
}

TEST(Placement, ReadsCoresNodesAndHyperthreads) {
  ASSERT_EQ(two_sockets().size(), 8u);
  EXPECT_THAT(two_sockets()[5].processors, ElementsAre(10, 11));
  EXPECT_EQ(two_sockets()[3].node, 0u);
  EXPECT_EQ(two_sockets()[4].node, 1u);
  EXPECT_THROW(cores_of_machine("nonsense:2"), std::runtime_error);
}

TEST(Placement, OneRankHasAThreadOnEachCore) {
  const Placement placement = place_all(1)[0];
  EXPECT_EQ(placement.num_threads, 8u);
  EXPECT_THAT(placement.processors, testing::ContainerEq(Sets{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
}

TEST(Placement, TwoRanksHaveASocketEach) {
  const auto placements = place_all(2);
  EXPECT_THAT(cores_of(placements[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cores_of(placements[1]), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(placements[1].num_threads, 4u);
}

TEST(Placement, NoRankLiesAcrossSocketsAndNoCoreIsSharedWhereThereAreEnough) {
  EXPECT_THAT(cores_of(place_all(3)[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cores_of(place_all(3)[1]), ElementsAre(4, 5));
  EXPECT_THAT(cores_of(place_all(3)[2]), ElementsAre(6, 7));
  for (const std::size_t ranks : {1, 2, 3, 5, 7, 8}) {
    std::set<int> used;
    for (const Placement& placement : place_all(ranks)) {
      const std::set<int> own = cores_of(placement);
      EXPECT_EQ(placement.num_threads, own.size()) << ranks << " ranks";
      EXPECT_TRUE(ranks == 1 || (*own.begin() < 4) == (*own.rbegin() < 4)) << ranks << " ranks: one lies across sockets";
      for (const int core : own) EXPECT_TRUE(used.insert(core).second) << ranks << " ranks share core " << core;
    }
    EXPECT_EQ(used.size(), 8u) << ranks << " ranks leave a core idle";
  }
}

TEST(Placement, MoreRanksThanCoresHaveHyperthreadsOfTheirOwnAndMoreThanThoseAreNotBound) {
  std::set<int> used;
  for (const Placement& placement : place_all(13)) {
    for (const int processor : placement.processors.at(0)) EXPECT_TRUE(used.insert(processor).second) << "processor " << processor;
  }
  EXPECT_EQ(used.size(), 16u);
  EXPECT_TRUE(place_all(17)[16].processors.empty());
  EXPECT_EQ(place_all(17)[16].num_threads, 1u);
}

TEST(Placement, ThreadsThatDoNotFillTheCoresOfTheirRankMoveWithinThem) {
  EXPECT_TRUE(place_all(1, 3)[0].processors.empty());
  const Placement some = place_all(2, 3)[1];
  EXPECT_THAT(some.processors, testing::Each(ElementsAre(8, 9, 10, 11, 12, 13, 14, 15)));
  EXPECT_EQ(some.processors.size(), 3u);
  EXPECT_THAT(place_all(2, 8)[0].processors, testing::ContainerEq(Sets{{0}, {2}, {4}, {6}, {1}, {3}, {5}, {7}}));
  EXPECT_THAT(place_all(2, 5)[0].processors, testing::ContainerEq(Sets{{0}, {2}, {4}, {6}, {1}}));
}

TEST(Placement, AQuotaOfTheControlGroupLimitsTheThreadsThatNobodyAskedFor) {
  EXPECT_EQ(place_rank(two_sockets(), {.quota = 3}).num_threads, 3u);
  EXPECT_EQ(place_rank(two_sockets(), {.rank = 1, .num_ranks = 2, .quota = 3}).num_threads, 1u);
  EXPECT_EQ(place_rank(two_sockets(), {.threads = 5, .quota = 3}).num_threads, 5u);
}

TEST(Placement, NoRankTakesMoreThreadsThanItHasProcessors) {
  EXPECT_EQ(place_all(1, 17)[0].num_threads, 16u);
  EXPECT_EQ(place_all(2, 9)[0].num_threads, 8u);
  EXPECT_EQ(place_all(3, 9)[1].num_threads, 4u);
  EXPECT_EQ(place_all(16, 2)[3].num_threads, 1u);
  EXPECT_EQ(place_all(17, 2)[3].num_threads, 1u);
}

TEST(Placement, ThreadsHaveProcessorsOfTheirOwnUpToTheProcessorsAndTheQuotaOfAllRanks) {
  const auto own = [](PlacementRequest request) { return place_rank(two_sockets(), request).own_processors; };
  EXPECT_TRUE(own({}));
  EXPECT_TRUE(own({.threads = 16}));
  EXPECT_TRUE(own({.rank = 1, .num_ranks = 3, .threads = 4}));
  EXPECT_TRUE(own({.rank = 15, .num_ranks = 16}));
  EXPECT_FALSE(own({.num_ranks = 17}));
  EXPECT_TRUE(own({.quota = 3}));
  EXPECT_FALSE(own({.threads = 4, .quota = 3}));
  EXPECT_TRUE(own({.num_ranks = 3, .quota = 3}));
  EXPECT_FALSE(own({.num_ranks = 4, .quota = 3}));
}

TEST(Placement, TheMaskOfTheThreadIsHonoured) {
  std::thread([] {  // a thread of its own: its mask ends with it
    const std::vector<Core> before = usable_cores();
    bind_this_thread({before.front().processors.front()});
    const std::vector<Core> after = usable_cores();
    ASSERT_EQ(after.size(), 1u);
    EXPECT_EQ(after.front().processors, std::vector<int>{before.front().processors.front()});
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(CPU_COUNT(&mask), 1);
  })
      .join();
}

}  // namespace
}  // namespace lockstep::device
