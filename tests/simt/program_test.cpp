// The program with its ranks as processes and a GPU each: the plug-in is loaded as it is on a machine with GPUs.

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

class ProgramOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_CUDA_PLUGIN", LOCKSTEP_EMULATED_PLUGIN, 1);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    unsetenv("LOCKSTEP_CONTROL");
    test::write_tiny_gguf(path("model.gguf"), device::DType::kBF16, {.num_layers = 1});
    std::ofstream requests(path("requests.jsonl"));
    for (int i = 0; i < 6; ++i)
      requests << R"({"prompt": [)" << 3 + i << R"(, 7, 9], "max_tokens": 5, "ignore_eos": true, "logprobs": 2})"
               << "\n";
    requests << R"({"prompt": 7})"
             << "\n";
  }
  void TearDown() override {
    for (const char* name : {"LOCKSTEP_CUDA_PLUGIN", "SIMT_DEVICE_COUNT"}) unsetenv(name);
  }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  Arguments batch(const std::string& output, const Arguments& more) const {
    Arguments command = {LOCKSTEP_PROGRAM,
                         "batch",
                         "-m",
                         path("model.gguf"),
                         "-i",
                         path("requests.jsonl"),
                         "--seed",
                         "5",
                         "-o",
                         path(output),
                         "--kv-cache-memory",
                         "1M",
                         "--max-num-seqs",
                         "4",
                         "--max-num-batched-tokens",
                         "64"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::string refusal(const std::string& output, const Arguments& more) const {
    test::Process job(batch(output, more), path(output));
    EXPECT_EQ(job.wait(), 2) << job.log();
    return job.log();
  }

  test::TemporaryFolder folder_;
};

TEST_F(ProgramOnGpus, ThreeProcessesWithAGpuEachWriteTheFileOfOne) {
  test::Process alone(batch("one.jsonl", {"--device", "cuda"}), path("one.jsonl"));
  ASSERT_EQ(alone.wait(), 3) << alone.log();  // one line has no answer
  test::Process three(batch("three.jsonl", {"--device", "auto", "-tp", "3"}), path("three.jsonl"));
  ASSERT_EQ(three.wait(), 3) << three.log();
  const std::string expected = test::contents(path("one.jsonl"));
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 7);
  EXPECT_THAT(expected, HasSubstr("-cuda-sm_90"));
  EXPECT_EQ(test::contents(path("three.jsonl")), expected);
}

TEST_F(ProgramOnGpus, MeasuresTransportsAndWritesTheTableThatABatchReads) {
  test::Process bench({LOCKSTEP_PROGRAM, "bench", "comm", "-tp", "2", "--comm-tuning", path("table.txt"), "--json"}, path("table.txt"));
  ASSERT_EQ(bench.wait(std::chrono::minutes(4)), 0) << bench.log();
  const std::string table = test::contents(path("table.txt"));
  EXPECT_THAT(table, HasSubstr("# 2 ranks, cuda 0"));
  EXPECT_THAT(table, HasSubstr("\n0 "));
  test::Process batch_job(batch("tuned.jsonl", {"--device", "cuda", "-tp", "2", "--comm-tuning", path("table.txt")}), path("tuned.jsonl"));
  EXPECT_EQ(batch_job.wait(), 3) << batch_job.log();
}

TEST_F(ProgramOnGpus, MeasuresAModelAgainstWhatTheGpusGive) {
  test::Process bench(
      {"/bin/sh", "-c",
       std::string(LOCKSTEP_PROGRAM) + " bench -m " + path("model.gguf") +
           " --input-len 4 --output-len 2 --num-prompts 2 --iterations 1 --warmup 0 --kv-cache-memory 1M --json >" + path("bench.json")},
      path("bench.json"));
  ASSERT_EQ(bench.wait(std::chrono::minutes(4)), 0) << bench.log();
  const std::string json = test::contents(path("bench.json"));
  for (const char* key : {"decode_tok_s", "share_of_roofline", "peak_flops", "share_of_peak"}) EXPECT_THAT(json, HasSubstr(key));
}

TEST_F(ProgramOnGpus, AJobOfTheCpuIsNotResumedOnGpus) {
  std::ofstream(path("cut.jsonl.partial"));
  test::Process cpu(batch("cut.jsonl", {"--device", "cpu"}), path("cut.jsonl"));
  ASSERT_EQ(cpu.wait(), 3) << cpu.log();
  std::filesystem::rename(path("cut.jsonl"), path("cut.jsonl.partial"));
  EXPECT_THAT(refusal("cut.jsonl", {"--device", "cuda", "--resume"}), HasSubstr("device"));
}

TEST_F(ProgramOnGpus, WhatCanNotRunIsOneErrorBeforeWeightsAreRead) {
  setenv("LOCKSTEP_CUDA_PLUGIN", "/nowhere/plugin.so", 1);
  EXPECT_THAT(refusal("a.jsonl", {"--device", "cuda"}), HasSubstr("the CUDA plug-in is not there (/nowhere/plugin.so)"));
  setenv("LOCKSTEP_CUDA_PLUGIN", path("requests.jsonl").c_str(), 1);
  EXPECT_THAT(refusal("b.jsonl", {"--device", "auto"}), HasSubstr("can not be used: the CUDA plug-in can not be loaded"));
}

}  // namespace
}  // namespace lockstep
