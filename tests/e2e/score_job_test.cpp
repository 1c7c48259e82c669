// `lockstep score` by the program itself over real ranks: the same bytes under mpirun as on one rank, also where a rank was killed.
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/job.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::Arguments;
using test::operator+;
using test::Process;
using ::testing::HasSubstr;

constexpr int kNumRequests = 240;
constexpr int kSomeFailed = 3;  // the exit code

class ScoreJobs : public test::JobTest {
 protected:
  static void SetUpTestSuite() {
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
    run_undisturbed(score({}), kSomeFailed, kNumRequests);
  }
  static Arguments score(const Arguments& more) {
    return Arguments{LOCKSTEP_PROGRAM, "score", "-m", path("model.gguf"), "-i", path("requests.jsonl"), "--threads", "1"} + more;
  }
  Arguments score_here(const Arguments& more) const { return score(more + Arguments{"-o", output_}); }
  /// Under an mpirun of our own, on so many ranks; the program is told how many to expect.
  Arguments by_hand(int num_ranks, const std::string& expected_ranks) const {
    return test::mpirun(num_ranks) + score_here({"--overwrite", "-tp", expected_ranks});
  }
  /// Runs in small steps, until so many answers are written.
  std::unique_ptr<Process> start_slowly(const std::string& num_ranks, const Arguments& more, std::ptrdiff_t answers) const {
    auto job = std::make_unique<Process>(score_here(Arguments{"-tp", num_ranks, "--max-num-batched-tokens", "32"} + more), output_);
    EXPECT_TRUE(wait_for_answers(answers)) << job->log();
    return job;
  }
  void expect_resumes_to_the_same_bytes(const std::string& num_ranks) const {
    ASSERT_FALSE(fs::exists(output_)) << "it was complete already";
    Process resumed = start(score_here({"-tp", num_ranks, "--resume"}));
    EXPECT_EQ(resumed.wait(), kSomeFailed) << resumed.log();
    EXPECT_THAT(resumed.log(), HasSubstr("from an earlier run"));
    EXPECT_TRUE(is_as_expected());
  }
};

TEST_F(ScoreJobs, UnderMpirunAreTheSameBytesAsOnOneRank) {
  for (const int num_ranks : {2, 3}) {
    Process job = start(by_hand(num_ranks, std::to_string(num_ranks)));
    EXPECT_EQ(job.wait(), kSomeFailed) << job.log();
    EXPECT_TRUE(is_as_expected()) << num_ranks << " ranks";
  }
  Process other = start(by_hand(2, "3"));  // so the ranks above were as many as they say
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
  expect_resumes_to_the_same_bytes("2");
}

TEST_F(ScoreJobs, ASignalStopsTheJobAndItResumes) {
  const auto job = start_slowly("2", {}, 5);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(milliseconds(10'000)), 143);
  expect_resumes_to_the_same_bytes("1");
}

TEST_F(ScoreJobs, ARestartFinishesTheJob) {
  const auto job = start_slowly("3", {"--restarts", "1"}, 20);
  const auto victims = job->ranks();
  ASSERT_EQ(victims.size(), 3u);
  kill(victims[2], SIGKILL);
  EXPECT_EQ(job->wait(), kSomeFailed) << job->log();
  EXPECT_THAT(job->log(), HasSubstr("starting again where it stopped, try 1 of 1"));
  EXPECT_TRUE(is_as_expected());
}

}  // namespace
}  // namespace lockstep
