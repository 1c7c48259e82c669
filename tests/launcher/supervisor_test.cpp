// Jobs of several processes, watched by the real supervisor: what it says, how it exits, how fast, and that no process is left.
#include "launcher/supervisor.h"

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/process.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

/// One run of the fake job's launcher.
class Job : public test::Process {
 public:
  explicit Job(const std::string& behaviour) : Job(behaviour, fmt::format("token-{}-{}", getpid(), ++counter_)) {}

  /// Ranks are up, and said so.
  bool wait_until_running() const {
    const bool there = wait_for_processes(3, milliseconds(10'000), "rank");
    std::this_thread::sleep_for(milliseconds(500));
    return there;
  }

 private:
  Job(const std::string& behaviour, const std::string& token) : Process({FAKE_JOB, "launch", behaviour, "3", token}, token) {}
  static inline int counter_ = 0;
};

TEST(Supervisor, PassesOnTheExitCodeOfTheRanks) {
  Job fine("finish");
  EXPECT_EQ(fine.wait(), 0);
  EXPECT_THAT(fine.log(), HasSubstr("5/5 requests"));
  Job some_bad("some-lines-bad");
  EXPECT_EQ(some_bad.wait(), 3);
  EXPECT_THAT(some_bad.log(), Not(HasSubstr("error")));
}

TEST(Supervisor, ADeadRankTakesTheJobDownByName) {
  Job job("die:1");
  ASSERT_TRUE(job.wait_until_running());
  EXPECT_TRUE(job.wait_for_processes(0, milliseconds(4000), "rank"));
  const auto died = Clock::now();
  EXPECT_EQ(job.wait(), 1);
  EXPECT_LT(Clock::now() - died, milliseconds(2000));
  EXPECT_THAT(job.log(), HasSubstr("rank 1 died (step 3, n07 reduce_add_norm): signal 9, Killed"));
  EXPECT_THAT(job.log(), HasSubstr("where the ranks stood: rank 0: step "));
  EXPECT_THAT(job.log(), Not(HasSubstr("mpirun noticed")));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, ARankThatLeavesWithoutAWordDied) {
  Job job("quit:2");
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.log(), HasSubstr("rank 2 died (step 3"));
}

TEST(Supervisor, ARankThatDiedBeforeItsFirstWordIsNamed) {
  Job job("die-unseen:0");  // the first to be missed is rank 2, which mpirun kills
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.log(), HasSubstr("rank 0 died (not started): signal 9, Killed"));
  EXPECT_THAT(job.log(), Not(HasSubstr("rank 2 died")));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, AFailedRankKeepsItsOwnMessage) {
  Job job("fail:0");
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.log(), HasSubstr("[rank 0] error: the model file is broken\n"));
  EXPECT_THAT(job.log(), HasSubstr("rank 0 failed"));
  EXPECT_THAT(job.log(), Not(HasSubstr("died")));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, ARankThatStandsStillIsNamed) {
  Job job("stall:1");
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.log(), HasSubstr("rank 1 is stuck: it has not moved for"));
  EXPECT_THAT(job.log(), HasSubstr("rank 1: step 2, n07 reduce_add_norm; rank 2: step 3, n07 reduce_add_norm"));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, AFrozenRankIsNamed) {
  Job job("freeze:2");
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.log(), HasSubstr("rank 2 is stuck: nothing was heard from it for"));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, TheFirstSignalDrains) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Job job("drain");
    ASSERT_TRUE(job.wait_until_running());
    job.signal(signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_THAT(job.log(), HasSubstr("stopping"));
    EXPECT_THAT(job.log(), Not(HasSubstr("died")));
    EXPECT_THAT(job.processes(), testing::IsEmpty());
  }
}

TEST(Supervisor, TheSecondSignalKills) {
  Job job("endless");
  ASSERT_TRUE(job.wait_until_running());
  job.signal(SIGINT);
  std::this_thread::sleep_for(milliseconds(300));
  ASSERT_EQ(job.wait(milliseconds(0)), -1);
  const auto second = Clock::now();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_LT(Clock::now() - second, milliseconds(1500));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, AKilledLauncherLeavesNoProcess) {
  Job job("endless");
  ASSERT_TRUE(job.wait_until_running());
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.wait_for_processes(0, milliseconds(2000)));
}

TEST(Supervisor, AKilledMpirunLeavesNoProcess) {
  Job job("endless");
  ASSERT_TRUE(job.wait_until_running());
  const auto commands = job.processes("mpirun");
  ASSERT_EQ(commands.size(), 1u);
  kill(commands.front(), SIGKILL);
  EXPECT_EQ(job.wait(milliseconds(2000)), 1);
  EXPECT_THAT(job.log(), HasSubstr("died (signal 9, Killed)"));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, SaysWhyNoRankStarted) {
  Job no_slots("no-slots");
  EXPECT_EQ(no_slots.wait(), 1);
  EXPECT_THAT(no_slots.log(), HasSubstr("did not start the ranks (exit code 213)"));
  EXPECT_THAT(no_slots.log(), HasSubstr("There are not enough slots available"));
  Job missing("no-mpirun");
  EXPECT_EQ(missing.wait(), 1);
  EXPECT_THAT(missing.log(), HasSubstr("no-such-program can not be started: No such file or directory"));
}

}  // namespace
}  // namespace lockstep::launcher
