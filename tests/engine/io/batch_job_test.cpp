#include "engine/io/batch_job.h"

#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/io/journal.h"
#include "tests/engine/io/fakes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class BatchJobTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
  BatchOptions options_;
  std::uint32_t order_ = 1;
  std::atomic<bool> stop_ = false;
  std::function<void(const BatchProgress&)> progress_;

  BatchJobTest() {
    options_.input_file = folder_.path() / "in.jsonl";
    options_.output_file = folder_.path() / "out.jsonl";
    options_.start_time = 1700000000;
    options_.seed = 7;
    options_.max_in_flight = 8;
    options_.model_hash = "abc";
    options_.settings = {{"dtype", "float32"}};
  }
  std::filesystem::path partial() const { return folder_.path() / "out.jsonl.partial"; }
  std::filesystem::path record() const { return folder_.path() / "out.jsonl.run.json"; }
  std::string output() const { return read_file(options_.output_file); }
  void input(const std::string& text) { write_file(options_.input_file, text); }

  BatchResult run(FakeEngine& engine) {
    const BatchModel model{engine, tokenizer_, fake_template, {}, "tiny", "fp"};
    return run_batch(options_, model, {progress_, &stop_});
  }
  BatchResult run() {
    FakeEngine engine(order_);
    return run(engine);
  }
  void expect_usage_error(const std::string& message) {
    try {
      run();
      FAIL() << "no error: " << message;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
};

constexpr const char* kFive =
    "{\"prompt\": \"one\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"two\"}], \"n\": 2}\n[1]\n{\"prompt\": [\"four\", \"4\"], "
    "\"logprobs\": 2}\n{\"prompt\": \"five\"}\n";

TEST_F(BatchJobTest, AnswersComeInInputOrderAndNothingElseIsLeft) {
  input(kFive);
  const BatchResult result = run();
  EXPECT_EQ(result.answered, 4u);
  EXPECT_EQ(result.failed, 1u);
  EXPECT_FALSE(result.interrupted);
  const auto lines = split_lines(output());
  ASSERT_EQ(lines.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(Json::parse(lines[i])["custom_id"], "line-" + std::to_string(i + 1));
  EXPECT_EQ(Json::parse(lines[1])["response"]["body"]["choices"].size(), 2u);
  EXPECT_EQ(Json::parse(lines[2])["response"]["status_code"], 400);
  EXPECT_EQ(Json::parse(lines[3])["response"]["body"]["choices"].size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(partial()));
  EXPECT_TRUE(std::filesystem::exists(record()));
  EXPECT_EQ(output().back(), '\n');
}

TEST_F(BatchJobTest, TheOutputDoesNotDependOnTheOrderOfCompletion) {
  input(kFive);
  run();
  const std::string expected = output();
  options_.overwrite = true;
  for (order_ = 2; order_ < 10; ++order_) {
    options_.max_in_flight = order_;
    run();
    EXPECT_EQ(output(), expected);
  }
  options_.seed = 8;
  run();
  EXPECT_NE(output(), expected);
}

TEST_F(BatchJobTest, AnAbsentSeedIsDrawnRecordedAndRepeatable) {
  input("{\"prompt\": \"one\"}\n");
  options_.seed.reset();
  options_.overwrite = true;
  const std::uint64_t drawn = run().seed;
  const std::string first = output();
  EXPECT_EQ(Json::parse(read_file(record()))["seed"], drawn);
  run();
  EXPECT_NE(output(), first);
  options_.seed = drawn;
  run();
  EXPECT_EQ(output(), first);
}

TEST_F(BatchJobTest, TheReportedSeedRepeatsAnUnseededAnswer) {
  input("{\"prompt\": \"one\"}\n");
  run();
  const Json body = Json::parse(output())["response"]["body"];
  input("\n\n{\"prompt\": \"one\", \"seed\": " + body["lockstep"]["seed"].dump() + "}\n");
  options_.overwrite = true;
  options_.seed = 99;
  run();
  EXPECT_EQ(Json::parse(output())["response"]["body"]["choices"], body["choices"]);
}

TEST_F(BatchJobTest, SourceDateEpochIsTheStartTime) {
  input("{\"prompt\": \"one\"}\n");
  options_.start_time.reset();
  ::setenv("SOURCE_DATE_EPOCH", "123456", 1);
  run();
  EXPECT_EQ(Json::parse(output())["response"]["body"]["created"], 123456);
  ::setenv("SOURCE_DATE_EPOCH", "soon", 1);
  options_.overwrite = true;
  expect_usage_error("SOURCE_DATE_EPOCH must be a number of seconds, but is \"soon\"");
  ::unsetenv("SOURCE_DATE_EPOCH");
}

/// Every fault that a line can have: none may cost more than itself.
const std::vector<std::string> kBadLines = {"[1]",
                                            "null",
                                            "{\"prompt\": \"x\"",
                                            "{\"prompt\": \"\xff\"}",
                                            "{\"body\": \"text\"}",
                                            "\"text\"",
                                            "17",
                                            "{}",
                                            "{\"custom_id\": 5, \"prompt\": \"x\"}",
                                            "{\"custom_id\": \"\", \"prompt\": \"x\"}",
                                            "{\"method\": \"GET\", \"body\": {\"prompt\": \"x\"}}",
                                            "{\"url\": \"/v1/embeddings\", \"body\": {\"prompt\": \"x\"}}",
                                            "{\"custom_id\": \"first\", \"prompt\": \"x\"}",
                                            "{\"prompt\": []}",
                                            "{\"prompt\": [[]]}",
                                            "{\"prompt\": [999]}",
                                            "{\"prompt\": [-1]}",
                                            "{\"prompt\": {\"a\": 1}}",
                                            "{\"prompt\": [\"a\", 1]}",
                                            "{\"prompt\": \"x\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
                                            "{\"prompt\": \"x\", \"temperature\": \"hot\"}",
                                            "{\"prompt\": \"x\", \"temperature\": 1e999}",
                                            "{\"prompt\": \"x\", \"temperature\": -1}",
                                            "{\"prompt\": \"x\", \"top_p\": 2}",
                                            "{\"prompt\": \"x\", \"n\": 0}",
                                            "{\"prompt\": \"x\", \"n\": 1000000}",
                                            "{\"prompt\": \"x\", \"seed\": 0.5}",
                                            "{\"prompt\": \"x\", \"max_tokens\": 0}",
                                            "{\"prompt\": \"x\", \"max_tokens\": -5}",
                                            "{\"prompt\": \"x\", \"stop\": [\"\"]}",
                                            "{\"prompt\": \"x\", \"stop\": 1}",
                                            "{\"prompt\": \"x\", \"logprobs\": 99}",
                                            "{\"prompt\": \"x\", \"echo\": 1}",
                                            "{\"prompt\": \"x\", \"stream\": true}",
                                            "{\"prompt\": \"x\", \"best_of\": 4}",
                                            "{\"prompt\": \"x\", \"nonsense\": 1}",
                                            "{\"messages\": []}",
                                            "{\"messages\": [1]}",
                                            "{\"messages\": [{\"role\": \"user\"}]}",
                                            "{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}",
                                            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
                                            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"top_logprobs\": 5}",
                                            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 1}",
                                            "{\"prompt\": \"" + std::string(100, 'y') + "\"}",
                                            "{\"prompt\": \"" + std::string(5000, 'z') + "\"}",
                                            std::string(2000, '['),
                                            "\xe2\x80\xa8",
                                            "{\"prompt\": \"\\ud800\"}",
                                            "{\"prompt\": \"x\"} {\"prompt\": \"y\"}",
                                            "{\"prompt\": \"fails!\"}"};

TEST_F(BatchJobTest, FiftyBadLinesOfTwoThousandCostFiftyErrorLines) {
  ASSERT_EQ(kBadLines.size(), 50u);
  std::string text = "\xef\xbb\xbf";
  std::set<std::size_t> bad;
  for (std::size_t i = 0; i < 2000; ++i) {
    if (i % 40 == 39) {
      bad.insert(i);
      text += kBadLines[i / 40] + "\n";
    } else if (i == 0) {
      text += "{\"custom_id\": \"first\", \"prompt\": \"x\"}\r\n";
    } else {
      text += i % 2 == 0 ? "{\"prompt\": \"p" + std::to_string(i) + "\", \"max_tokens\": 3}\r\n"
                         : "{\"custom_id\": \"c" + std::to_string(i) +
                               "\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": [{\"role\": "
                               "\"user\", \"content\": \"x\"}]}}\n";
    }
  }
  input(text);
  options_.max_line_bytes = 4000;
  FakeEngine engine;
  const BatchResult result = run(engine);
  EXPECT_EQ(result.answered, 1950u);
  EXPECT_EQ(result.failed, 50u);
  EXPECT_LE(engine.most_in_flight, options_.max_in_flight);
  const auto lines = split_lines(output());
  ASSERT_EQ(lines.size(), 2000u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json line = Json::parse(lines[i]);
    const bool ok = line["response"].is_object() && line["response"]["status_code"] == 200;
    EXPECT_EQ(ok, !bad.contains(i)) << lines[i];
    if (i != 39 + 40 * 49) {
      EXPECT_TRUE(line["error"].is_null());
      EXPECT_NE(ok, line["response"]["body"].contains("error"));
    } else {
      EXPECT_TRUE(line["response"].is_null());
      EXPECT_EQ(line["error"]["code"], "generation_failed");
    }
  }
}

TEST_F(BatchJobTest, WhatOnlyTheEngineRefusesCostsItsLineAlone) {
  input(
      "{\"prompt\": \"one\"}\n"
      "{\"prompt\": \"x\", \"use_beam_search\": true, \"n\": 60}\n"
      "{\"prompt\": [\"fine\", \"\xc3\xa9\"]}\n"  // the tokenizer's ids of the second are beyond the model's
      "{\"prompt\": \"x\", \"use_beam_search\": true, \"n\": 2}\n");
  FakeEngine engine;
  engine.limits_.vocab_size = 150;
  const BatchResult result = run(engine);
  EXPECT_EQ(result.answered, 2u);
  EXPECT_EQ(result.failed, 2u);
  EXPECT_EQ(engine.submitted.size(), 2u) << "no prompt of a refused line runs";
  const auto lines = split_lines(output());
  ASSERT_EQ(lines.size(), 4u);
  for (const auto& [at, message] : {std::pair{1u, "too many beams"}, {2u, "token 198 of the prompt"}}) {
    const Json response = Json::parse(lines[at])["response"];
    EXPECT_EQ(response["status_code"], 400);
    EXPECT_EQ(response["body"]["error"]["code"], "invalid_request");
    EXPECT_EQ(response["body"]["error"]["message"], message);
  }
}

TEST_F(BatchJobTest, ASecondUseOfACustomIdIsRefused) {
  input(
      "{\"custom_id\": \"a\", \"prompt\": \"x\"}\n{\"custom_id\": \"line-3\", \"prompt\": \"x\"}\n{\"prompt\": \"x\"}\n{\"custom_id\": "
      "\"a\", \"prompt\": \"x\"}\n");
  EXPECT_EQ(run().failed, 2u);
  EXPECT_THAT(split_lines(output())[2], HasSubstr("custom_id \\\"line-3\\\" was used by an earlier line"));
  EXPECT_THAT(split_lines(output())[3], HasSubstr("\"code\":\"duplicate_custom_id\""));
}

TEST_F(BatchJobTest, FailuresGoToTheErrorFileIfThereIsOne) {
  input(kFive);
  options_.error_file = folder_.path() / "errors.jsonl";
  run();
  EXPECT_EQ(split_lines(output()).size(), 4u);
  EXPECT_EQ(split_lines(read_file(*options_.error_file)).size(), 1u);
}

TEST_F(BatchJobTest, CompletionOrderHasTheSameLines) {
  input(kFive);
  run();
  auto sorted = split_lines(output());
  std::sort(sorted.begin(), sorted.end());
  options_.overwrite = true;
  options_.output_order = OutputOrder::kCompletion;
  order_ = 5;
  run();
  auto lines = split_lines(output());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, sorted);
  EXPECT_FALSE(std::filesystem::exists(partial()));
}

TEST_F(BatchJobTest, AnExistingOutputIsLeftAlone) {
  input(kFive);
  write_file(options_.output_file, "precious");
  expect_usage_error("out.jsonl: exists already: --overwrite replaces it");
  EXPECT_EQ(output(), "precious");
  options_.resume = true;
  expect_usage_error("run.json is missing");
  EXPECT_EQ(output(), "precious");
  options_.resume = false;
  options_.overwrite = true;
  run();
  EXPECT_EQ(split_lines(output()).size(), 5u);
}

TEST_F(BatchJobTest, PathsThatCollideAreRefused) {
  input(kFive);
  options_.output_file = options_.input_file;
  expect_usage_error("the output file is the same file as the input file");
  options_.output_file = folder_.path() / "sub" / ".." / "in.jsonl";
  std::filesystem::create_directory(folder_.path() / "sub");
  expect_usage_error("the output file is the same file as the input file");
  options_.output_file = folder_.path() / "out.jsonl";
  options_.error_file = folder_.path() / "out.jsonl.partial";
  expect_usage_error("the error file is the same file as the journal");
  options_.error_file = folder_.path() / "out.jsonl.run.json.tmp";
  expect_usage_error("out.jsonl.run.json.tmp: the temporary file is the same file as the error file");
  options_.error_file.reset();
  options_.output_file = folder_.path() / "nowhere" / "out.jsonl";
  expect_usage_error("the folder of the output file does not exist");
  options_.output_file = "/dev/null";
  expect_usage_error("must be an ordinary file");
  options_.output_file = folder_.path() / "out.jsonl";
  options_.input_file = folder_.path() / "absent.jsonl";
  expect_usage_error("the input file does not exist");
  EXPECT_EQ(read_file(folder_.path() / "in.jsonl"), kFive);
}

TEST_F(BatchJobTest, ASecondJobOnTheSameOutputIsRefused) {
  input(kFive);
  const Journal other(partial(), read_batch_answer);
  expect_usage_error("another job is writing this output");
}

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

TEST_F(BatchJobTest, APipeIsAnswered) {
  const std::filesystem::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    write_file(pipe, kFive);
    ::_exit(0);
  }
  options_.input_file = pipe;
  EXPECT_EQ(run().answered, 4u);
}

TEST_F(BatchJobTest, ProgressCountsLines) {
  input(kFive);
  std::vector<BatchProgress> seen;
  progress_ = [&](const BatchProgress& progress) { seen.push_back(progress); };
  run();
  ASSERT_GT(seen.size(), 2u);
  EXPECT_EQ(seen.front().done, 0u);
  EXPECT_EQ(seen.front().total, 5u);
  EXPECT_EQ(seen.back().done, 5u);
  EXPECT_EQ(seen.back().failed, 1u);
  EXPECT_EQ(seen.back().lines_in_flight, 0u);
  EXPECT_EQ(seen.back().generated_tokens, 30u);  // six choices of five tokens
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
TEST_F(BatchJobTest, MemoryDoesNotGrowWithTheInput) {
  {
    std::ofstream file(options_.input_file);
    for (int i = 0; i < 30'000; ++i)
      file << "{\"prompt\": \"p\", \"metadata\": \"" << std::string(2000, 'x') << "\", \"n\": " << 1 + i % 3 << "}\n";
  }
  const auto peak_kib = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  FakeEngine engine;
  engine.remember = false;
  const long before = peak_kib();
  EXPECT_EQ(run(engine).answered, 30'000u);
  EXPECT_LT(peak_kib() - before, 8 << 10) << "KiB more than before, for 60 MB of requests and "
                                          << (std::filesystem::file_size(options_.output_file) >> 20) << " MiB of answers";
}
#endif

TEST_F(BatchJobTest, AnEmptyInputGivesAnEmptyOutput) {
  input("\n\n");
  const BatchResult result = run();
  EXPECT_EQ(result.answered + result.failed, 0u);
  EXPECT_EQ(output(), "");
}

}  // namespace
}  // namespace lockstep::engine
