#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/runtime/rotary.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

RopeSpec rope_of(const json& config, std::size_t head_dim, std::size_t positions) {
  const JsonFields fields(config, "config.json");
  return rope_from_config(fields, head_dim, positions);
}

std::vector<float> plain(double theta, std::size_t dim) { return rotary_of(RopeSpec{.theta = theta, .rotary_dim = dim}).frequencies; }

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const json config = json::parse(R"({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  const std::vector<float> scaled = rotary_of(rope_of(config, 128, 131072)).frequencies, unscaled = plain(500000.0, 128);
  ASSERT_EQ(scaled.size(), 64u);
  for (std::size_t i = 0; i <= 28; ++i) EXPECT_EQ(scaled[i], unscaled[i]) << i;
  EXPECT_NEAR(scaled[32], 5.2485e-4, 5e-9);
  EXPECT_NEAR(scaled[63], 3.0689e-7, 5e-12);
  EXPECT_FLOAT_EQ(scaled[63], unscaled[63] / 8.0f);
}

TEST(Rope, YarnHasAnAttentionFactorAndARampBetweenItsBetas) {
  const json config = json::parse(R"({"rope_theta": 10000.0, "rope_parameters": {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 4096}})");
  const parallel::Rotary rotary = rotary_of(rope_of(config, 128, 16384));
  const std::vector<float> unscaled = plain(10000.0, 128);
  EXPECT_NEAR(rotary.factor, 1.13863, 5e-6);
  EXPECT_EQ(rotary.frequencies.front(), unscaled.front());
  EXPECT_FLOAT_EQ(rotary.frequencies.back(), unscaled.back() / 4.0f);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_LE(rotary.frequencies[i], unscaled[i]);
    EXPECT_GE(rotary.frequencies[i], unscaled[i] / 4.0f * 0.9999f);
  }
  json stated = config;
  stated["rope_parameters"]["attention_factor"] = 2.0;
  EXPECT_EQ(rotary_of(rope_of(stated, 128, 16384)).factor, 2.0f);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const json config = json::parse(R"({"rope_scaling": {"type": "linear", "factor": 4.0}})");
  const std::vector<float> scaled = rotary_of(rope_of(config, 16, 256)).frequencies, unscaled = plain(10000.0, 16);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(scaled[i], unscaled[i] / 4.0f);
}

TEST(Rope, DynamicGrowsItsBaseWithTheLengthBehindThatOfTraining) {
  const json config = json::parse(R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})");
  const parallel::Rotary rotary = rotary_of(rope_of(config, 16, 100));
  const std::vector<float> unscaled = plain(10000.0, 16);
  EXPECT_EQ(frequencies_for(rotary, 100), unscaled);
  const std::vector<float> at_150 = frequencies_for(rotary, 150);
  const double base = 10000.0 * std::pow(2.0 * 150 / 100 - 1.0, 16.0 / 14.0);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(at_150[i], std::pow(base, -2.0 * static_cast<double>(i) / 16.0), 1e-6 * at_150[i]);
}

TEST(Rope, LongropeHasTwoSetsOfFactors) {
  const json config =
      json::parse(R"({"max_position_embeddings": 512, "original_max_position_embeddings": 128, "rope_scaling": {"type": "longrope",
    "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}})");
  const parallel::Rotary rotary = rotary_of(rope_of(config, 4, 512));
  const std::vector<float> unscaled = plain(10000.0, 4);
  EXPECT_EQ(frequencies_for(rotary, 128), (std::vector<float>{unscaled[0], unscaled[1] / 2.0f}));
  EXPECT_EQ(frequencies_for(rotary, 129), (std::vector<float>{unscaled[0] / 4.0f, unscaled[1] / 8.0f}));
  EXPECT_NEAR(rotary.factor, std::sqrt(1.0 + std::log(4.0) / std::log(128.0)), 1e-6);
}

TEST(Rope, DivisorsOfAFileDivideTheFrequencies) {
  RopeSpec rope{.rotary_dim = 4};
  rope.divisors = {1.0f, 8.0f};
  const std::vector<float> unscaled = plain(10000.0, 4);
  EXPECT_EQ(rotary_of(rope).frequencies, (std::vector<float>{unscaled[0], unscaled[1] / 8.0f}));
}

TEST(Rope, Llama3HasTheTableOfAFileWithItsDivisors) {
  RopeSpec rope{.theta = 500000.0, .rotary_dim = 128, .scaling = RopeScaling::kLlama3, .factor = 8.0, .original_positions = 8192};
  RopeSpec file{.theta = 500000.0, .rotary_dim = 128};
  file.divisors = llama3_divisors(rope);
  ASSERT_EQ(file.divisors.size(), 64u);
  EXPECT_EQ(file.divisors.front(), 1.0f);
  EXPECT_EQ(file.divisors.back(), 8.0f);
  EXPECT_EQ(std::count_if(file.divisors.begin(), file.divisors.end(), [](float divisor) { return divisor > 1.0f && divisor < 8.0f; }), 6);
  EXPECT_TRUE(rotary_of(rope) == rotary_of(file));
}

TEST(Rope, AnglesOfTokensAreAFunctionOfPromptLengthAndPosition) {
  const json config = json::parse(R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})");
  const parallel::Rotary rotary = rotary_of(rope_of(config, 16, 100));
  device::StepBatch whole, piece;
  whole.sequences = {{.num_tokens = 120, .prompt_length = 120}};
  RotaryAngles all, some;
  angles_of_tokens(rotary, whole, all);
  piece.sequences = {{.num_tokens = 10, .first_position = 50, .prompt_length = 120},
                     {.first_token = 10, .num_tokens = 1, .first_position = 110, .prompt_length = 20}};
  angles_of_tokens(rotary, piece, some);
  EXPECT_TRUE(std::equal(some.cosines.begin(), some.cosines.begin() + 80, all.cosines.begin() + 50 * 8)) << "in pieces as at once";
  const float angle = 110.0f * frequencies_for(rotary, 111)[1];
  EXPECT_NEAR(some.cosines[80 + 1], std::cos(angle), 1e-6f) << "a token behind the prompt is rotated for its own position";
}

}  // namespace
}  // namespace lockstep::engine
