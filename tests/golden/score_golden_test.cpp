// The perplexity of small models on a text of 64 tokens, and its log-probabilities, against the reference (in fp64 from fp32 logits).

#include <cmath>

#include <gtest/gtest.h>

#include "engine/score/perplexity.h"
#include "tests/golden/record.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

class ScoreGoldens : public testing::TestWithParam<std::tuple<test::Golden, int>> {};

TEST_P(ScoreGoldens, PerplexityIsThatOfTheReference) {
  const test::Golden& model = std::get<0>(GetParam());
  const nlohmann::json score = model.answers().at("score");
  const auto tokens = score.at("tokens").get<std::vector<std::int32_t>>();
  const auto expected = score.at("token_logprobs").get<std::vector<double>>();
  test::with_session(test::exact_setup(model.model, std::get<1>(GetParam())), [&](engine::Session& session) {
    const engine::Perplexity whole = engine::measure_perplexity(session.engine(), tokens);
    EXPECT_EQ(whole.num_scored, expected.size());
    const double difference = std::fabs(whole.perplexity() / score.at("perplexity").get<double>() - 1.0);
    EXPECT_LE(difference, 1e-5) << whole.perplexity();
    test::record_largest(model, "perplexity", difference);

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

std::string case_name(const testing::TestParamInfo<ScoreGoldens::ParamType>& info) {
  return test::test_name(std::get<0>(info.param), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreGoldens, testing::ValuesIn(test::with_ranks(test::having("score", test::golden_folders()))),
                         case_name);

}  // namespace
}  // namespace lockstep
