// Jobs of the real program over real ranks, in which something dies: named, soon over, no process left, and resumed to the same bytes.
#include "tests/launcher/job.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::Arguments;
using test::operator+;
using test::contents;
using test::Process;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kNumRequests = 300;

class Faults : public test::JobTest {
 protected:
  static void SetUpTestSuite() {
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    unsetenv("LOCKSTEP_CONTROL");
    test::write_tiny_gguf(path("model.gguf"), device::DType::kQ4_1);
    std::ofstream requests(path("requests.jsonl"));
    for (int i = 0; i < kNumRequests; ++i) {
      requests << fmt::format(R"({{"prompt": [{}, {}, {}], "max_tokens": {}, "ignore_eos": true}})", 3 + i % 250, 7, 3 + (i * 31) % 250,
                              40 + i % 40)
               << "\n";
    }
    requests.close();
    run_undisturbed(batch({}), 0, kNumRequests);
  }
  static Arguments batch(const Arguments& more) {
    return Arguments{LOCKSTEP_PROGRAM, "batch", "-m", path("model.gguf"), "-i", path("requests.jsonl"), "--seed", "5", "--threads", "1",
                     "--max-num-seqs", "8"} +
           more;
  }
  Arguments batch_here(const Arguments& more) const { return batch(more + Arguments{"-o", output_}); }
  /// The rest of the job, on `num_ranks` ranks, must complete to the undisturbed answers.
  void expect_resumes_to_the_same_bytes(const std::string& num_ranks) const {
    ASSERT_FALSE(fs::exists(output_)) << "it was complete already";
    Process resumed = start(batch_here({"-tp", num_ranks, "--resume"}));
    EXPECT_EQ(resumed.wait(), 0) << resumed.log();
    EXPECT_TRUE(is_as_expected());
  }
};

TEST_F(Faults, NoneGivesTheSameFileHoweverItIsStarted) {
  Process by_launcher = start(batch_here({"-tp", "3"}));
  EXPECT_EQ(by_launcher.wait(), 0) << by_launcher.log();
  EXPECT_TRUE(is_as_expected());

  Process by_mpirun = start(test::mpirun(2) + batch_here({"--overwrite", "--comm", "mpi"}));
  EXPECT_EQ(by_mpirun.wait(), 0) << by_mpirun.log();
  EXPECT_TRUE(is_as_expected());
}

TEST_F(Faults, AKilledRankIsNamedAndTheJobResumes) {
  std::mt19937 random(static_cast<unsigned>(getpid()));
  Process job = start(batch_here({"-tp", "3"}));
  ASSERT_TRUE(wait_for_answers(1 + random() % (kNumRequests / 3))) << job.log();
  const auto victims = job.ranks();
  ASSERT_EQ(victims.size(), 3u);
  const pid_t victim = victims[random() % 3];
  const int rank = Process::rank_of(victim);
  kill(victim, SIGKILL);
  EXPECT_EQ(job.wait(milliseconds(2000)), 1);
  EXPECT_THAT(job.log(),
              HasSubstr(fmt::format("rank {} died (", rank)));  // and where, as it last told: that may be a tenth of a second old
  EXPECT_THAT(job.log(), HasSubstr("where the ranks stood: rank 0: "));
  EXPECT_THAT(job.processes(), IsEmpty());
  expect_resumes_to_the_same_bytes("2");
}

TEST_F(Faults, ARankMayDieInAnyPhase) {
  for (int tries = 0; tries < 8; ++tries) {
    fs::remove(output_ + ".partial");
    fs::remove(output_ + ".run.json");
    Process job = start(batch_here({"-tp", "3", "--overwrite"}));
    ASSERT_TRUE(Process::wait_until([&] { return job.ranks().size() == 3; }, milliseconds(30'000))) << job.log();
    std::this_thread::sleep_for(milliseconds(tries * 60));  // from the start of MPI to the first steps
    const auto victims = job.ranks();
    if (victims.size() != 3) continue;
    const pid_t victim = victims[static_cast<std::size_t>(tries) % 3];
    const int rank = Process::rank_of(victim);
    kill(victim, SIGKILL);
    EXPECT_EQ(job.wait(milliseconds(2500)), 1) << tries << "\n" << job.log();
    EXPECT_THAT(job.log(), AnyOf(HasSubstr(fmt::format("rank {} ", rank)), HasSubstr("did not start the ranks"))) << tries;
    EXPECT_THAT(job.processes(), IsEmpty());
  }
}

TEST_F(Faults, OneSignalDrainsAndTheJobResumes) {
  Process job = start(batch_here({"-tp", "2"}));
  ASSERT_TRUE(wait_for_answers(20)) << job.log();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.log();
  EXPECT_THAT(job.log(), Not(HasSubstr("died")));
  EXPECT_THAT(job.processes(), IsEmpty());
  expect_resumes_to_the_same_bytes("1");
}

TEST_F(Faults, OneSignalDrainsARankAlone) {
  Process job = start(batch_here({}));
  ASSERT_TRUE(wait_for_answers(20)) << job.log();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.log();
  expect_resumes_to_the_same_bytes("2");
}

TEST_F(Faults, AKilledLauncherLeavesNoProcess) {
  Process job = start(batch_here({"-tp", "3"}));
  ASSERT_TRUE(wait_for_answers(5)) << job.log();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.wait_for_processes(0, milliseconds(2000)));
  expect_resumes_to_the_same_bytes("1");
}

TEST_F(Faults, AKilledMpirunLeavesNoProcess) {
  Process job = start(batch_here({"-tp", "2"}));
  ASSERT_TRUE(wait_for_answers(5)) << job.log();
  const auto mpirun = job.processes("--oversubscribe");
  ASSERT_EQ(mpirun.size(), 1u);
  kill(mpirun.front(), SIGKILL);
  EXPECT_EQ(job.wait(milliseconds(2000)), 1) << job.log();
  EXPECT_THAT(job.log(), HasSubstr("mpirun died (signal 9, Killed)"));
  EXPECT_TRUE(job.wait_for_processes(0, milliseconds(100)));
}

TEST_F(Faults, AnMpirunStartedByHandLeavesNoProcessEither) {
  Process job = start(test::mpirun(2) + batch_here({}));
  ASSERT_TRUE(wait_for_answers(5)) << job.log();
  job.signal(SIGKILL);
  EXPECT_TRUE(job.wait_for_processes(0, milliseconds(2000)));
}

TEST_F(Faults, ARestartFinishesTheJob) {
  Process job = start(batch_here({"-tp", "2", "--restarts", "1"}));
  ASSERT_TRUE(wait_for_answers(20)) << job.log();
  kill(job.ranks().at(1), SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.log();
  EXPECT_THAT(job.log(), HasSubstr("starting again where it stopped, try 1 of 1"));
  EXPECT_TRUE(is_as_expected());
}

TEST_F(Faults, MoreRanksThanLeavesIsOneMessage) {
  const auto start_time = Process::Clock::now();
  Process job = start(batch_here({"-tp", "10"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_LT(Process::Clock::now() - start_time, milliseconds(5000));
  const std::string log = job.log();
  EXPECT_THAT(log, HasSubstr("10 ranks are more than this model's 9 attention leaves"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(Faults, AnotherRankCountThanMpiruns) {
  Process job = start(test::mpirun(2) + batch_here({"-tp", "3"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.log(), HasSubstr("--tensor-parallel-size is 3, but mpirun started 2 ranks"));
}

TEST_F(Faults, TwoMpiInstallationsAreRefused) {
  // What a rank of a foreign mpirun sees: the environment counts two ranks, the library only itself.
  Process job = start(Arguments{"env", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"} + batch_here({}));
  EXPECT_EQ(job.wait(milliseconds(20'000)), 2) << job.log();
  EXPECT_THAT(job.log(), HasSubstr("counts 1: they come from two MPI installations"));
}

TEST_F(Faults, AnExistingOutputIsLeftAlone) {
  std::ofstream(output_) << "precious\n";
  Process job = start(batch_here({"-tp", "2"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.log(), HasSubstr(output_));
  EXPECT_EQ(contents(output_), "precious\n");
}

}  // namespace
}  // namespace lockstep
