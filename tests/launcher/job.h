#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/launcher/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// An mpirun of the test's own, that starts so many ranks of what follows.
inline Arguments mpirun(int num_ranks) {
  return {LOCKSTEP_MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(num_ranks)};
}

/// A folder for all tests of a program, with a model, requests and the answers of a run that nothing disturbed; and an output file for each
/// test.
class JobTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { output_ = path(fmt::format("{}.jsonl", testing::UnitTest::GetInstance()->current_test_info()->name())); }

  /// The first call makes the folder.
  static std::string path(const std::string& name) {
    if (!folder_) folder_ = std::make_unique<TemporaryFolder>();
    return (folder_->path() / name).string();
  }
  /// Runs `job` to the end, on one rank, for what the other runs have to give.
  static void run_undisturbed(const Arguments& job, int exit_code, std::ptrdiff_t num_answers) {
    Process undisturbed(job + Arguments{"-o", path("expected.jsonl")}, path("expected.jsonl"));
    ASSERT_EQ(undisturbed.wait(), exit_code) << undisturbed.log();
    ASSERT_EQ(lines(path("expected.jsonl")), num_answers);
  }

  Process start(const Arguments& command) const { return Process(command, output_); }
  bool is_as_expected() const { return contents(output_) == contents(path("expected.jsonl")); }
  bool wait_for_answers(std::ptrdiff_t count) const {
    return Process::wait_until([&] { return lines(output_ + ".partial") >= count; }, std::chrono::milliseconds(60'000));
  }
  static std::ptrdiff_t lines(const std::string& file) {
    const std::string text = contents(file);
    return std::count(text.begin(), text.end(), '\n');
  }

  std::string output_;
  static inline std::unique_ptr<TemporaryFolder> folder_;
};

}  // namespace lockstep::test
