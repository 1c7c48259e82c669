#include <csignal>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "tests/comm/rank_runner.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Clock = std::chrono::steady_clock;

Position at(std::uint64_t step, const char* node) {
  Position position;
  position.step = step;
  std::snprintf(position.node, sizeof position.node, "%s", node);
  return position;
}

/// What a barrier throws, after how long.
std::string barrier_error(Communicator& communicator, milliseconds& after) {
  const auto start = Clock::now();
  const std::string error = conformance::error_of([&] { communicator.barrier(); });
  after = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  return error;
}

/// Survivors hand what they saw to the test as their outcome.
[[noreturn]] void report(const std::string& error, milliseconds after) {
  throw std::runtime_error(after < milliseconds(1000) ? "in time: " + error : "after " + std::to_string(after.count()) + " ms: " + error);
}

TEST(ShmFault, AKilledRankIsNamedWithItsPositionWithinASecond) {
  for (const int victim : {0, 1, 2}) {
    const Outcomes outcomes = run_shm(3, {}, [victim](Communicator& communicator) {
      communicator.set_position(at(7, "n05 attention"));
      communicator.barrier();
      if (communicator.rank() == victim) {
        communicator.set_position(at(7, "n06 linear"));
        std::this_thread::sleep_for(milliseconds(50));
        raise(SIGKILL);
      }
      milliseconds after{};
      const std::string error = barrier_error(communicator, after);
      report(error, after);
    });
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (static_cast<int>(rank) == victim) {
        EXPECT_THAT(outcomes[rank], HasSubstr("killed by signal 9"));
      } else {
        EXPECT_THAT(outcomes[rank],
                    AllOf(HasSubstr("in time: a rank has died: rank " + std::to_string(victim) + ": step 7, node n06 linear"),
                          HasSubstr("after collective 2: barrier")));
      }
    }
  }
}

TEST(ShmFault, ARankThatIsKilledInsideACollectiveIsNamed) {
  const Outcomes outcomes = run_shm(3, conformance::small_options(), [](Communicator& communicator) {
    std::thread killer;
    if (communicator.rank() == 2) {
      killer = std::thread([] {
        std::this_thread::sleep_for(milliseconds(100));
        raise(SIGKILL);
      });
    }
    const conformance::SharedTree tree(9, communicator.size());
    std::vector<float> values(20000 * 4);
    const auto start = Clock::now();
    const std::string error = conformance::error_of([&] {
      while (true) communicator.all_reduce(tree.sum, values.data(), 20000);
    });
    if (communicator.rank() == 2) killer.join();
    report(error, std::chrono::duration_cast<milliseconds>(Clock::now() - start));
  });
  EXPECT_THAT(outcomes[0], AllOf(HasSubstr("in time: a rank has died: rank 2"), HasSubstr("all_reduce of 20000 values")));
  EXPECT_THAT(outcomes[1], AllOf(HasSubstr("in time: a rank has died: rank 2"), HasSubstr("all_reduce of 20000 values")));
}

CommunicatorOptions short_deadline() {
  CommunicatorOptions options;
  options.deadline = milliseconds(300);
  return options;
}

/// Rank 2 sleeps while the others wait in a barrier.
void one_is_late(Communicator& communicator) {
  communicator.set_position(at(4, "n02 norm"));
  communicator.barrier();
  if (communicator.rank() == 2) {
    communicator.set_position(at(5, "schedule"));
    std::this_thread::sleep_for(milliseconds(900));
  } else {
    communicator.set_position(at(5, "n11 linear"));
  }
  milliseconds after{};
  const std::string error = barrier_error(communicator, after);
  report(error, after);
}

TEST(ShmFault, ACheckFindsAKilledRankWithinASecond) {
  const Outcomes outcomes = run_shm(3, {}, [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) raise(SIGKILL);
    const auto start = Clock::now();
    std::string error;
    while (error.empty() && Clock::now() - start < milliseconds(5000)) error = conformance::error_of([&] { communicator.check(); });
    report(error, std::chrono::duration_cast<milliseconds>(Clock::now() - start));
  });
  EXPECT_THAT(outcomes[0], HasSubstr("in time: a rank has died: rank 1"));
  EXPECT_THAT(outcomes[2], HasSubstr("in time: a rank has died: rank 1"));
}

class Late : public testing::TestWithParam<std::pair<const char*, Runner>> {};

TEST_P(Late, ARankThatSleepsIsNamedAtTheDeadlineWithWhereEachStands) {
  for (const std::string& outcome : GetParam().second(3, short_deadline(), one_is_late)) {
    EXPECT_THAT(outcome, AllOf(HasSubstr("in time: rank 2 is late"), HasSubstr("300 ms"),
                               HasSubstr("rank 2: step 5, node schedule, after collective"), HasSubstr("<- late"),
                               HasSubstr("rank 0: step 5, node n11 linear, in collective"), HasSubstr("rank 1: step 5, node n11 linear")));
  }
}

TEST_P(Late, ARankThatLeavesIsNamedAtOnce) {
  const Outcomes outcomes = GetParam().second(3, {}, [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) return;
    milliseconds after{};
    const std::string error = barrier_error(communicator, after);
    report(error, after);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("in time: a rank has left while others wait for it: rank 1"));
  EXPECT_EQ(outcomes[1], "");
  EXPECT_THAT(outcomes[2], HasSubstr("in time: a rank has left while others wait for it: rank 1"));
}

TEST_P(Late, AnAbortFromAnotherThreadEndsTheWait) {
  const Outcomes outcomes = GetParam().second(3, {}, [](Communicator& communicator) {
    communicator.barrier();
    std::thread other;
    if (communicator.rank() == 2) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(50));
        communicator.abort("SIGTERM came twice");
      });
      other.join();  // rank 2 itself never comes to the barrier in time
      std::this_thread::sleep_for(milliseconds(200));
    }
    milliseconds after{};
    const std::string error = barrier_error(communicator, after);
    report(error, after);
  });
  for (const std::string& outcome : outcomes) EXPECT_THAT(outcome, HasSubstr("in time: SIGTERM came twice"));
}

INSTANTIATE_TEST_SUITE_P(Implementations, Late,
                         testing::Values(std::pair<const char*, Runner>("Threads", run_threads),
                                         std::pair<const char*, Runner>("Shm", run_shm)),
                         [](const auto& instance) { return std::string(instance.param.first); });

TEST(ShmFault, FourRanksOnTwoCoresDoNotCollapse) {
  constexpr int calls = 1000;
  const auto start = Clock::now();
  const Outcomes outcomes = run_shm(4, {}, [](Communicator& communicator) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    conformance::require(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "no affinity");
    cpu_set_t two;
    CPU_ZERO(&two);
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE && found < 2; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      CPU_SET(cpu, &two);
      ++found;
    }
    conformance::require(sched_setaffinity(0, sizeof two, &two) == 0, "cannot set the affinity");
    const conformance::SharedTree tree(9, communicator.size());
    std::vector<float> values(576 * 4);
    for (int call = 0; call < calls; ++call) communicator.all_reduce(tree.sum, values.data(), 576);
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  // Ranks that only spin take a scheduler's slice, some 12 ms, for each call: 12 s. This takes a tenth of a second on an idle machine.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(6));
}

TEST(Shm, TheRegionHasNoNameInTheFileSystem) {
  const Outcomes outcomes = run_shm(2, {}, [](Communicator& communicator) {
    communicator.barrier();
    std::ifstream maps("/proc/self/maps");
    std::stringstream text;
    text << maps.rdbuf();
    conformance::require(text.str().find("/memfd:lockstep-") != std::string::npos, "the region is not mapped");
    conformance::require(text.str().find("/dev/shm/lockstep") == std::string::npos, "the region has a file");
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

std::string attach_error(const std::string& name, int rank, int size) {
  return conformance::error_of([&] { make_shm_communicator(name, rank, size, short_deadline()); });
}

TEST(Shm, NamesThatLeadNowhereAreRefused) {
  for (const char* name : {"", "abc", "1", "1.2", "1.2.", "1.2.3.", "-1.2.3", "99999999999999999999999.1.1", "1.2.3 "}) {
    EXPECT_THAT(attach_error(name, 0, 1), HasSubstr("is not the name of a region")) << name;
  }
  EXPECT_THAT(attach_error(std::to_string(getpid()) + ".0.1", 0, 1), HasSubstr("is not the region"));
  EXPECT_THAT(attach_error("999999999.3.1", 0, 1), HasSubstr("its maker has ended"));
}

TEST(Shm, AnAbsentRankIsNamedWhileAttaching) {
  const ShmRegion region(2, short_deadline());
  EXPECT_THAT(attach_error(region.name(), 0, 2), AllOf(HasSubstr("rank 1 is late"), HasSubstr("rank 1: has not attached yet")));
}

TEST(Shm, ARankCannotBeTakenTwiceNorTheSizeDiffer) {
  const ShmRegion region(1, short_deadline());
  EXPECT_THAT(attach_error(region.name(), 0, 2), HasSubstr("expects 2 ranks"));
  const ShmRegion other(1, short_deadline());
  const auto first = make_shm_communicator(other.name(), 0, 1, short_deadline());
  EXPECT_THAT(attach_error(other.name(), 0, 1), HasSubstr("rank 0 is taken"));
}

TEST(Options, NonsenseIsRefusedByName) {
  CommunicatorOptions options;
  options.slot_bytes = 100;
  EXPECT_THROW(make_thread_communicators(2, options), std::invalid_argument);
  EXPECT_THROW(make_thread_communicators(0), std::invalid_argument);
  options = {};
  options.deadline = milliseconds(0);
  EXPECT_THROW(ShmRegion(2, options), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::comm
