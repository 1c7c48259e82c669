// Rows of the numeric contract on the example model, by the program itself over real ranks: whole output files and dumped logits are the
// same bytes; and its logits and greedy tokens against the reference. LOCKSTEP_EXAMPLE_MODEL names the GGUF file (scripts/fetch-model.sh;
// scripts/test.sh sets it).
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launcher/process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

using test::contents;
using test::Process;
using Arguments = std::vector<std::string>;

struct Row {
  int ranks;
  int threads;
  const char* isa;  // empty: the best
  int max_num_seqs;
  int chunk;
  int preempt_every;
};

class ExampleModel : public testing::Test {
 protected:
  void SetUp() override {
    const char* model = std::getenv("LOCKSTEP_EXAMPLE_MODEL");
    if (model == nullptr) GTEST_SKIP() << "LOCKSTEP_EXAMPLE_MODEL is not set (scripts/fetch-model.sh)";
    model_ = model;
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
  }
  void TearDown() override { unsetenv("LOCKSTEP_ISA"); }

  const std::string& model() const { return model_; }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  void run(const Row& row, Arguments arguments, const std::string& output) {
    if (*row.isa != 0) {
      setenv("LOCKSTEP_ISA", row.isa, 1);
    } else {
      unsetenv("LOCKSTEP_ISA");
    }
    const Arguments common{"-m",
                           model_,
                           "-tp",
                           std::to_string(row.ranks),
                           "--threads",
                           std::to_string(row.threads),
                           "--max-num-seqs",
                           std::to_string(row.max_num_seqs),
                           "--max-prefill-chunk",
                           std::to_string(row.chunk),
                           "--debug-preempt-every",
                           std::to_string(row.preempt_every),
                           "--kv-cache-memory",
                           "128MiB"};
    arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
    arguments.insert(arguments.end(), common.begin(), common.end());
    Process job(arguments, output);
    ASSERT_EQ(job.wait(std::chrono::minutes(4)), 0) << job.log();
  }

  const std::vector<Row> rows_{
      {1, 2, "", 64, 512, 0}, {1, 1, "avx2", 1, 16, 0}, {2, 1, "", 8, 512, 5}, {3, 1, "avx2", 64, 7, 0}, {9, 1, "", 64, 512, 0}};

 private:
  test::TemporaryFolder folder_;
  std::string model_;
};

TEST_F(ExampleModel, OutputFilesAreTheSameBytesOnAnyNumberOfRanks) {
  std::string expected;
  for (const Row& row : rows_) {
    const std::string output = path(fmt::format("answers-{}-{}.jsonl", row.ranks, row.threads));
    run(row, {"batch", "-i", LOCKSTEP_EXAMPLES "/requests.jsonl", "-o", output, "--seed", "7"}, output);
    if (HasFatalFailure()) return;
    if (expected.empty()) expected = contents(output);
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(contents(output) == expected) << row.ranks << " ranks";
  }
}

TEST_F(ExampleModel, DumpedLogitsAreTheSameBytesOnAnyNumberOfRanks) {
  std::string prompt;
  for (int i = 0; i < 90; ++i) prompt += fmt::format("{}{}", i == 0 ? "" : ",", 100 + i * 487 % 40000);
  std::string expected;
  for (const Row& row : rows_) {
    const std::string output = path(fmt::format("logits-{}-{}.safetensors", row.ranks, row.threads));
    run(row, {"generate", "--prompt-ids", prompt, "--dump-logits", output}, output);
    if (HasFatalFailure()) return;
    if (expected.empty()) expected = contents(output);
    ASSERT_GT(expected.size(), 90u * 49152 * 4);
    EXPECT_TRUE(contents(output) == expected) << row.ranks << " ranks";
  }
}

TEST_F(ExampleModel, ARankTakesItsWeightsItsCacheAndNoMoreThan64Mebibytes) {
  for (const int ranks : {1, 2}) {
    const std::string output = path(fmt::format("bench-{}.json", ranks));
    Process job(
        {"sh", "-c",
         fmt::format("exec {} bench -m '{}' -tp {} --threads 1 --kv-cache-memory 64MiB --input-len 64 --output-len 4 --num-prompts 2 "
                     "--json > '{}'",
                     LOCKSTEP_PROGRAM, model(), ranks, output)},
        output);
    ASSERT_EQ(job.wait(std::chrono::minutes(4)), 0) << job.log();
    const nlohmann::json result = nlohmann::json::parse(contents(output));
    ASSERT_EQ(result.at("ranks"), ranks);
    const std::size_t weights = result.at("weight_bytes"), cache = result.at("kv_bytes"), resident = result.at("resident_bytes");
    EXPECT_GT(resident, weights);
    EXPECT_LE(resident, weights + cache + (std::size_t{64} << 20)) << ranks << " ranks: " << weights << " weights, " << cache << " cache";
  }
}

}  // namespace
}  // namespace lockstep
