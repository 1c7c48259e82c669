#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/io/batch_job.h"
#include "tests/engine/io/fakes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::engine {

/// Jobs in a folder of their own, on an engine and a tokenizer that are made up.
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
      EXPECT_THAT(error.what(), testing::HasSubstr(message));
    }
  }
};

/// Requests, of which the third is none.
inline constexpr const char* kFive =
    "{\"prompt\": \"one\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"two\"}], \"n\": 2}\n[1]\n{\"prompt\": [\"four\", \"4\"], "
    "\"logprobs\": 2}\n{\"prompt\": \"five\"}\n";

}  // namespace lockstep::engine
