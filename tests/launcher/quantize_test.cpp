// `lockstep quantize --perplexity`: the perplexity of a text before and after.
#include "launcher/quantize.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/self.h"
#include "device/cpu/cpu_device.h"
#include "engine/io/usage_error.h"
#include "launcher/perplexity.h"
#include "launcher/session_options.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kText =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.";

class QuantizePerplexity : public testing::Test {
 protected:
  QuantizePerplexity() {
    config_.subcommand = Subcommand::kQuantize;
    config_.model = (fs::path(LOCKSTEP_TEST_DATA) / "models/llama-gqa").string();
    config_.quantize_output = (folder_.path() / "out.gguf").string();
    config_.type = "Q4_0";
    config_.threads = 1;
    config_.perplexity_file = folder_.write("text.txt", kText).string();
    printed_.clear();
  }
  void run() const {
    quantize(config_, [](std::string_view text) { printed_ += text; });
  }
  std::string refusal() const {
    try {
      run();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "(none)";
  }
  /// As `lockstep score --perplexity` measures it.
  double perplexity_of(const std::string& model) const {
    RunConfig config = config_;
    config.subcommand = Subcommand::kScore;
    config.model = model;
    const auto device = device::make_cpu_device({.num_threads = 2});
    const auto communicator = comm::make_self_communicator();
    engine::Session session(session_options(config, 1, false), *device, *communicator);
    const auto tokens = perplexity_tokens(config, session.tokenizer(), kText);
    return engine::measure_perplexity(session.engine(), tokens, perplexity_options(config, session.engine())).perplexity();
  }
  /// The number in front of these words in the last line.
  static double printed(const std::string& words) {
    const std::size_t end = printed_.find(words, printed_.rfind("perplexity "));
    return end == std::string::npos ? -1.0 : std::strtod(printed_.c_str() + printed_.rfind(' ', end - 1) + 1, nullptr);
  }

  test::TemporaryFolder folder_;
  RunConfig config_;
  static inline std::string printed_;
};

TEST_F(QuantizePerplexity, IsWhatScoreMeasuresBeforeAndAfter) {
  run();
  const double before = perplexity_of(config_.model), after = perplexity_of(config_.quantize_output);
  EXPECT_NEAR(printed(" before"), before, 1e-6 * before);
  EXPECT_NEAR(printed(" after"), after, 1e-6 * after);
  EXPECT_NE(before, after);
  EXPECT_THAT(printed_, HasSubstr("109 of 110 tokens scored in 1 window of 256, stride 128)\n"));
}

TEST_F(QuantizePerplexity, HasWindows) {
  config_.window = 32;
  config_.stride = 16;
  run();
  EXPECT_NEAR(printed(" before"), perplexity_of(config_.model), 1e-3);
  EXPECT_THAT(printed_, HasSubstr("109 of 110 tokens scored in 6 windows of 32, stride 16)\n"));
}

TEST_F(QuantizePerplexity, IsOnRequest) {
  config_.perplexity_file.clear();
  run();
  EXPECT_THAT(printed_, testing::Not(HasSubstr("perplexity ")));
}

TEST_F(QuantizePerplexity, WhatIsWrongShowsBeforeAnythingIsWritten) {
  const RunConfig given = config_;
  const auto refused = [&](auto&& change) {
    config_ = given;
    change(config_);
    std::string message = refusal();
    EXPECT_FALSE(fs::exists(given.quantize_output));
    EXPECT_EQ(printed_, "");
    return message;
  };
  EXPECT_THAT(refused([](RunConfig& c) { c.perplexity_file = "nowhere.txt"; }),
              HasSubstr("--perplexity nowhere.txt: the file can not be opened"));
  EXPECT_THAT(refused([&](RunConfig& c) { c.perplexity_file = folder_.path().string(); }), HasSubstr("the file can not be opened"));
  EXPECT_THAT(refused([&](RunConfig& c) { c.perplexity_file = folder_.write("empty.txt", "").string(); }),
              HasSubstr("the text has 1 tokens"));
  EXPECT_THAT(refused([](RunConfig& c) { c.window = 257; }), HasSubstr("--window 257: the context has room for 256 tokens"));
  EXPECT_THAT(refused([](RunConfig& c) { c.model = (fs::path(LOCKSTEP_TEST_DATA) / "models/llama-mha").string(); }),
              HasSubstr("tokenizer"));
  config_ = given;
  folder_.write("out.gguf", "precious");
  EXPECT_THAT(refusal(), HasSubstr("--overwrite replaces it"));
}

}  // namespace
}  // namespace lockstep::launcher
