// `lockstep score` by the program itself over real ranks: the same bytes under mpirun as on one rank, also where a rank was killed.
#include <algorithm>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::contents;
using test::Process;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

constexpr int kNumRequests = 240;

class ScoreJobs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    unsetenv("LOCKSTEP_CONTROL");
    test::write_tiny_gguf(path("model.gguf"), device::DType::kQ8_0);
    std::mt19937 random(7);
    std::ofstream requests(path("requests.jsonl"));
    for (int i = 0; i < kNumRequests; ++i) {
      std::vector<std::string> ids;
      for (std::size_t count = 20 + random() % 300; ids.size() < count;) ids.push_back(std::to_string(3 + random() % 250));
      const std::string tokens = fmt::format("{}", fmt::join(ids, ", "));
      requests << (i % 3 == 0   ? fmt::format(R"({{"text": [{}]}})", tokens)
                   : i % 3 == 1 ? fmt::format(R"({{"id": {}, "context": [{}], "continuation": [9, 8], "token_logprobs": true}})", i, tokens)
                                : fmt::format(R"({{"context": [{}], "continuation": [999]}})", tokens))  // no such token
               << "\n";
    }
    requests.close();
    Process undisturbed(score({"-o", path("expected.jsonl")}), path("expected.jsonl"));
    ASSERT_EQ(undisturbed.wait(), 3) << undisturbed.log();
    const std::string expected = contents(path("expected.jsonl"));
    ASSERT_EQ(std::count(expected.begin(), expected.end(), '\n'), kNumRequests);
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { output_ = path(fmt::format("{}.jsonl", testing::UnitTest::GetInstance()->current_test_info()->name())); }

  static std::string path(const std::string& name) { return (folder_->path() / name).string(); }
  static Arguments score(const Arguments& more) {
    Arguments command = {LOCKSTEP_PROGRAM, "score", "-m", path("model.gguf"), "-i", path("requests.jsonl"), "--threads", "1"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  /// Under an mpirun of our own, on so many ranks; the program is told how many to expect.
  Arguments by_hand(int num_ranks, const std::string& expected_ranks) const {
    Arguments command = {LOCKSTEP_MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(num_ranks)};
    const Arguments program = score({"-o", output_, "--overwrite", "-tp", expected_ranks});
    command.insert(command.end(), program.begin(), program.end());
    return command;
  }
  bool is_as_expected() const { return contents(output_) == contents(path("expected.jsonl")); }
  std::size_t num_answers() const {
    const std::string journal = contents(output_ + ".partial");
    return static_cast<std::size_t>(std::count(journal.begin(), journal.end(), '\n'));
  }
  /// Runs in small steps, until so many answers are written.
  std::unique_ptr<Process> start_slowly(const std::string& num_ranks, const Arguments& more, std::size_t answers) const {
    Arguments command = score({"-o", output_, "-tp", num_ranks, "--max-num-batched-tokens", "32"});
    command.insert(command.end(), more.begin(), more.end());
    auto job = std::make_unique<Process>(command, output_);
    EXPECT_TRUE(Process::wait_until([&] { return num_answers() >= answers; }, milliseconds(60'000))) << job->log();
    return job;
  }

  std::string output_;
  static inline std::unique_ptr<test::TemporaryFolder> folder_;
};

TEST_F(ScoreJobs, UnderMpirunAreTheSameBytesAsOnOneRank) {
  for (const int num_ranks : {2, 3}) {
    Process job(by_hand(num_ranks, std::to_string(num_ranks)), output_);
    EXPECT_EQ(job.wait(), 3) << job.log();
    EXPECT_TRUE(is_as_expected()) << num_ranks << " ranks";
  }
  Process other(by_hand(2, "3"), output_);  // so the ranks above were as many as they say
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.log(), HasSubstr("--tensor-parallel-size"));
}

TEST_F(ScoreJobs, AKilledRankIsNamedAndTheJobResumes) {
  const auto job = start_slowly("3", {}, 20);
  const auto victims = job->ranks();
  ASSERT_EQ(victims.size(), 3u);
  const int rank = Process::rank_of(victims[1]);
  kill(victims[1], SIGKILL);
  EXPECT_EQ(job->wait(milliseconds(2500)), 1);
  EXPECT_THAT(job->log(), HasSubstr(fmt::format("rank {} died", rank)));
  ASSERT_FALSE(fs::exists(output_)) << "it was complete already";
  Process resumed(score({"-o", output_, "-tp", "2", "--resume"}), output_);
  EXPECT_EQ(resumed.wait(), 3) << resumed.log();
  EXPECT_THAT(resumed.log(), HasSubstr("from an earlier run"));
  EXPECT_TRUE(is_as_expected());
}

TEST_F(ScoreJobs, ASignalStopsTheJobAndItResumes) {
  const auto job = start_slowly("2", {}, 5);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(milliseconds(10'000)), 143);
  ASSERT_FALSE(fs::exists(output_)) << "it was complete already";
  Process resumed(score({"-o", output_, "--resume"}), output_);
  EXPECT_EQ(resumed.wait(), 3) << resumed.log();
  EXPECT_TRUE(is_as_expected());
}

TEST_F(ScoreJobs, ARestartFinishesTheJob) {
  const auto job = start_slowly("3", {"--restarts", "1"}, 20);
  const auto victims = job->ranks();
  ASSERT_EQ(victims.size(), 3u);
  kill(victims[2], SIGKILL);
  EXPECT_EQ(job->wait(), 3) << job->log();
  EXPECT_THAT(job->log(), HasSubstr("starting again where it stopped, try 1 of 1"));
  EXPECT_TRUE(is_as_expected());
}

}  // namespace
}  // namespace lockstep
