// Jobs of several processes, watched by the real supervisor: what it says, how it exits, how fast, and that no process is left.
#include "launcher/supervisor.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// One run of the fake job's launcher.
class Job {
 public:
  explicit Job(const std::string& behaviour, int num_ranks = 3) : token_(fmt::format("token-{}-{}", getpid(), ++counter_)) {
    log_path_ = std::filesystem::path(testing::TempDir()) / ("lockstep_" + token_ + ".log");
    pid_ = fork();
    if (pid_ == 0) {
      const int log = open(log_path_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
      dup2(log, 2);
      const std::string count = std::to_string(num_ranks);
      execl(FAKE_JOB, FAKE_JOB, "launch", behaviour.c_str(), count.c_str(), token_.c_str(), nullptr);
      _exit(127);
    }
  }
  ~Job() {
    for (const pid_t pid : processes()) kill(pid, SIGKILL);
    std::filesystem::remove(log_path_);
  }

  pid_t pid() const { return pid_; }

  /// The exit code (128 + signal for a death by one), or -1 if it is still running after `limit`.
  int wait(milliseconds limit = milliseconds(20'000)) {
    const auto deadline = Clock::now() + limit;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return -1;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::string log() const { return contents(log_path_); }

  /// Processes of this job that exist, but for zombies.
  std::vector<pid_t> processes(const std::string& role = "") const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string command = contents(entry.path() / "cmdline");
      if (command.find(token_) == std::string::npos) continue;
      if (role.empty() || command.find(std::string(1, '\0') + role + std::string(1, '\0')) != std::string::npos)
        found.push_back(std::stoi(name));
    }
    return found;
  }

  bool wait_for_processes(const std::string& role, std::size_t count, milliseconds limit) const {
    const auto deadline = Clock::now() + limit;
    while (processes(role).size() != count) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  /// Ranks are up, and said so.
  bool wait_until_running(int num_ranks = 3) const {
    const bool there = wait_for_processes("rank", static_cast<std::size_t>(num_ranks), milliseconds(10'000));
    std::this_thread::sleep_for(milliseconds(500));
    return there;
  }

 private:
  static inline int counter_ = 0;
  std::string token_;
  std::filesystem::path log_path_;
  pid_t pid_ = 0;
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
  EXPECT_TRUE(job.wait_for_processes("rank", 0, milliseconds(4000)));
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
    kill(job.pid(), signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_THAT(job.log(), HasSubstr("stopping"));
    EXPECT_THAT(job.log(), Not(HasSubstr("died")));
    EXPECT_THAT(job.processes(), testing::IsEmpty());
  }
}

TEST(Supervisor, TheSecondSignalKills) {
  Job job("endless");
  ASSERT_TRUE(job.wait_until_running());
  kill(job.pid(), SIGINT);
  std::this_thread::sleep_for(milliseconds(300));
  ASSERT_EQ(job.wait(milliseconds(0)), -1);
  const auto second = Clock::now();
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_LT(Clock::now() - second, milliseconds(1500));
  EXPECT_THAT(job.processes(), testing::IsEmpty());
}

TEST(Supervisor, AKilledLauncherLeavesNoProcess) {
  Job job("endless");
  ASSERT_TRUE(job.wait_until_running());
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.wait_for_processes("", 0, milliseconds(2000)));
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
