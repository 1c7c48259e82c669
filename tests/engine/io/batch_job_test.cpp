#include "tests/engine/io/batch_job.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/io/journal.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

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
