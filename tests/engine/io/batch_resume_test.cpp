// Jobs that were stopped, failed or found no room, and go on.
#include <algorithm>
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/engine/io/batch_job.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;

/// Stops a job after its journal has some lines, and gives the journal.
class ResumeTest : public BatchJobTest {
 protected:
  std::string expected_;

  void start(const std::string& text, std::uint64_t stop_after) {
    input(text);
    run();
    expected_ = output();
    std::filesystem::remove(options_.output_file);
    std::filesystem::remove(record());
    progress_ = [&, stop_after](const BatchProgress& progress) { stop_ = progress.done >= stop_after; };
    FakeEngine engine(order_);
    engine.max_per_step = 1;
    EXPECT_TRUE(run(engine).interrupted);
    EXPECT_FALSE(std::filesystem::exists(options_.output_file));
    EXPECT_GE(split_lines(read_file(partial())).size(), stop_after);
    progress_ = nullptr;
    stop_ = false;
    options_.resume = true;
    order_ = 77;
  }
};

TEST_F(ResumeTest, GoesOnToTheSameFileAndDoesNothingTwice) {
  start(kFive, 3);
  const std::size_t done = split_lines(read_file(partial())).size();
  FakeEngine engine(9);
  const BatchResult result = run(engine);
  EXPECT_EQ(result.resumed, done);
  EXPECT_EQ(result.answered + result.failed, 5u);
  EXPECT_EQ(output(), expected_);
  EXPECT_LT(engine.submitted.size(), 5u);
  EXPECT_EQ(run().resumed, 5u);  // a finished job: nothing to do
  EXPECT_EQ(run().failed, 1u);
  EXPECT_EQ(output(), expected_);
}

// Journal.RecoversTheWholeLinesOfAFileCutAtAnyByte tries every byte; this is the whole way to the output.
TEST_F(ResumeTest, AJournalThatWasCutGivesTheSameOutput) {
  start(kFive, 4);
  const std::string journal = read_file(partial());
  const std::string record_text = read_file(record());
  for (std::size_t length = 0; length <= journal.size(); length += length + 60 < journal.size() ? 41 : 3) {
    std::filesystem::remove(options_.output_file);
    write_file(partial(), journal.substr(0, length));
    write_file(record(), record_text);
    run();
    ASSERT_EQ(output(), expected_) << "cut at " << length;
    ASSERT_FALSE(std::filesystem::exists(partial()));
  }
}

TEST_F(ResumeTest, DamageInTheMiddleOfAJournalCostsThatLineAlone) {
  start(kFive, 4);
  std::string journal = read_file(partial());
  const auto lines = split_lines(journal);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::filesystem::remove(options_.output_file);
    std::string damaged;
    for (std::size_t j = 0; j < lines.size(); ++j)
      damaged += (i == j ? std::string(lines[j].size(), '\0') : lines[j]) + "\n" + (i == j ? lines[0] + "\n" : "");
    write_file(partial(), damaged);
    options_.output_order = i % 2 == 0 ? OutputOrder::kInput : OutputOrder::kCompletion;
    run();
    auto got = split_lines(output());
    std::sort(got.begin(), got.end());
    auto want = split_lines(expected_);
    std::sort(want.begin(), want.end());
    EXPECT_EQ(got, want);
  }
}

TEST_F(ResumeTest, WhatHasChangedIsNamedAndNothingIsTouched) {
  start(kFive, 2);
  const std::string journal = read_file(partial());
  const BatchOptions good = options_;
  const auto expect = [&](const std::string& message) {
    expect_usage_error(message);
    options_ = good;
    EXPECT_EQ(read_file(partial()), journal);
  };
  options_.settings["dtype"] = "auto";
  expect("--resume: dtype was \"float32\" when the job was started, and is \"auto\" now");
  options_.settings["kv-cache-dtype"] = "float16";
  expect("kv-cache-dtype was not given");
  options_.settings.clear();
  expect("dtype was \"float32\"");
  options_.model_hash = "def";
  expect("the model was abc when the job was started, and is def now");
  options_.numerics_version = 2;
  expect("the numerics version was 0");
  options_.seed = 8;
  expect("seed was 7");
  options_.served_model_name = "x";
  expect("served-model-name");
  std::string changed = kFive;
  changed[changed.find("five")] = 'F';
  input(changed);
  expect("line 5 is not what it was");
  input(std::string(1, '\n') + kFive);
  expect("line 2 is not what it was");
  input(std::string(kFive) + "{}");
  expect("line 6 was added");
  input(std::string(kFive).substr(0, 18));
  expect("has 1 requests, but had 5");
  write_file(record(), "{}");
  expect("is not the record of a job");
  options_.resume = false;
  input(kFive);
  expect("an earlier job left answers: --resume goes on with it");
}

TEST_F(ResumeTest, RefusedLinesCountAsDoneUnlessErrorsAreRetried) {
  start(kFive, 5 - 1);
  run();
  FakeEngine engine;
  options_.retry_errors = true;
  options_.resume = false;
  const BatchResult result = run(engine);
  EXPECT_EQ(result.resumed, 4u);
  EXPECT_EQ(result.failed, 1u);
  EXPECT_TRUE(engine.submitted.empty());  // the bad line is refused again, before the engine
  EXPECT_EQ(output(), expected_);
}

TEST_F(ResumeTest, RetriesFindFailuresThatWereInTheErrorFile) {
  options_.error_file = folder_.path() / "errors.jsonl";
  input("{\"prompt\": \"fails!\"}\n{\"prompt\": \"b\"}\n");
  EXPECT_EQ(run().failed, 1u);
  options_.retry_errors = true;
  FakeEngine engine;
  EXPECT_EQ(run(engine).failed, 1u);
  EXPECT_EQ(engine.submitted.size(), 1u);
  EXPECT_EQ(split_lines(read_file(*options_.error_file)).size(), 1u);
}

TEST_F(ResumeTest, DuplicatesAreJudgedByLineOrderAlsoAfterAResume) {
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += "{\"custom_id\": \"" + std::string(i % 7 == 6 ? "same" : "id" + std::to_string(i)) + "\", \"prompt\": \"p\"}\n";
  start(text, 9);
  run();
  EXPECT_EQ(output(), expected_);
}

TEST_F(ResumeTest, WithNothingToResumeTheJobStarts) {
  input(kFive);
  options_.resume = true;
  EXPECT_EQ(run().answered, 4u);
}

TEST_F(ResumeTest, OverwriteForgetsTheOldJob) {
  start(kFive, 3);
  options_.resume = false;
  options_.overwrite = true;
  options_.settings["dtype"] = "other";
  EXPECT_EQ(run().resumed, 0u);
  EXPECT_EQ(output(), expected_);
}

TEST_F(BatchJobTest, AnEngineThatFailsLeavesAJournalThatCanBeResumed) {
  input(kFive);
  run();
  const std::string expected = output();
  options_.overwrite = true;
  for (int steps = 0; steps < 3; ++steps) {
    std::filesystem::remove(options_.output_file);
    FakeEngine engine(3);
    engine.steps_before_failure = steps;
    EXPECT_THROW(run(engine), std::runtime_error);
    EXPECT_GT(engine.cancelled, 0u);
    EXPECT_FALSE(std::filesystem::exists(options_.output_file));
    EXPECT_GE(split_lines(read_file(partial())).size(), static_cast<std::size_t>(steps));
    options_.overwrite = false;
    options_.resume = true;
    run();
    EXPECT_EQ(output(), expected);
    options_.overwrite = true;
    options_.resume = false;
  }
}

TEST_F(BatchJobTest, AFullDiskIsAClearErrorAndTheJournalStaysUsable) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "{\"prompt\": \"p" + std::to_string(i) + "\"}\n";
  input(text);
  run();
  const std::string expected = output();
  std::filesystem::remove(options_.output_file);

  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small = {8000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    run();
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, HasSubstr("out.jsonl.partial: can not be written: File too large"));
  EXPECT_THAT(message, HasSubstr("--resume"));
  const std::string journal = read_file(partial());
  EXPECT_EQ(journal.back(), '\n');
  EXPECT_GT(split_lines(journal).size(), 3u);
  options_.resume = true;
  EXPECT_EQ(run().resumed, split_lines(journal).size());
  EXPECT_EQ(output(), expected);
}

}  // namespace
}  // namespace lockstep::engine
