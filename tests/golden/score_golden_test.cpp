// The perplexity of small models on a text of 64 tokens, and its log-probabilities, against the reference (in fp64 from fp32 logits).

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/score/perplexity.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path models() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  return (wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA)) / "models";
}

class ScoreGoldens : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  fs::path folder() const { return models() / std::get<0>(GetParam()); }
  nlohmann::json golden() const { return nlohmann::json::parse(std::ifstream(folder() / "golden.json")); }
};

TEST_P(ScoreGoldens, PerplexityIsThatOfTheReference) {
  const nlohmann::json score = golden().at("score");
  const auto tokens = score.at("tokens").get<std::vector<std::int32_t>>();
  const auto expected = score.at("token_logprobs").get<std::vector<double>>();
  const double perplexity = score.at("perplexity").get<double>();
  test::with_session(test::exact_setup(folder(), std::get<1>(GetParam())), [&](engine::Session& session) {
    const engine::Perplexity whole = engine::measure_perplexity(session.engine(), tokens);
    EXPECT_EQ(whole.num_scored, expected.size());
    EXPECT_LE(std::fabs(whole.perplexity() / perplexity - 1.0), 1e-5) << whole.perplexity();

    engine::Request request;
    request.prompt = tokens;
    request.first_scored = 1;
    request.sampling.max_tokens = 0;
    std::vector<engine::TokenLogprob> got;
    session.engine().submit(request, [&](engine::Completion&& completion) { got = std::move(completion.prompt_logprobs); });
    while (session.engine().step()) {
    }
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(static_cast<double>(got[i].logprob), expected[i], 2e-4) << i;
  });
}

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  std::string name = std::get<0>(info.param) + "_ranks" + std::to_string(std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreGoldens,
                         testing::Combine(testing::Values("llama-mha", "llama-gqa", "llama-tied", "llama-bias", "llama-headdim"),
                                          testing::Values(1, 3)),
                         test_name);

}  // namespace
}  // namespace lockstep
