// Beam search of small models against the reference: tokens identical, scores to fp32.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/golden/record.h"
#include "tests/support/session_run.h"

namespace lockstep {
namespace {

engine::Request request_of(const nlohmann::json& golden, const nlohmann::json& one) {
  engine::Request request;
  request.prompt = golden.at("prompts").at(golden.at("beam").at("prompt").get<std::string>()).at("tokens").get<std::vector<std::int32_t>>();
  engine::SamplingParams& params = request.sampling;
  params.max_tokens = one.at("max_new_tokens").get<std::uint32_t>();
  params.ignore_eos = true;
  if (!one.at("eos_token_id").is_null()) params.stop_token_ids = {one["eos_token_id"].get<std::int32_t>()};
  engine::BeamParams beams;
  beams.num_beams = one.at("num_beams").get<std::uint32_t>();
  beams.length_penalty = one.at("length_penalty").get<float>();
  const nlohmann::json& early = one.at("early_stopping");
  beams.early_stopping = early == "never" ? engine::EarlyStopping::kNever
                         : early == true  ? engine::EarlyStopping::kYes
                                          : engine::EarlyStopping::kNo;
  params.n = beams.num_beams;
  params.beams = beams;
  return request;
}

class BeamGoldens : public testing::TestWithParam<std::tuple<test::Golden, int>> {};

TEST_P(BeamGoldens, TokensAndScoresAreThoseOfTheReference) {
  const test::Golden& model = std::get<0>(GetParam());
  const nlohmann::json golden = model.answers();
  test::RunSetup setup = test::exact_setup(model.model, std::get<1>(GetParam()));
  if (setup.ranks == 2) setup.session.max_num_seqs = 3;  // fewer than beams: they take turns
  setup.session.block_size = 16;
  test::with_session(setup, [&](engine::Session& session) {
    const nlohmann::json& cases = golden.at("beam").at("cases");
    std::vector<engine::Completion> completions(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {  // all at once
      engine::Request request = request_of(golden, cases[i]);
      request.id = i;
      session.engine().submit(std::move(request), [&](engine::Completion&& done) { completions[done.id] = std::move(done); });
    }
    while (session.engine().step()) {
    }
    EXPECT_GE(cases.size(), 4u);
    double largest = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const nlohmann::json& beams = cases[i].at("beams");
      ASSERT_EQ(completions[i].choices.size(), beams.size());
      for (std::size_t at = 0; at < beams.size(); ++at) {
        SCOPED_TRACE(testing::Message() << "case " << i << ", result " << at);
        const engine::Choice& choice = completions[i].choices[at];
        EXPECT_EQ(choice.error, "");
        EXPECT_EQ(choice.tokens, beams[at].at("tokens").get<std::vector<std::int32_t>>());
        const double score = beams[at].at("score").get<double>();
        const double difference = std::fabs(static_cast<double>(choice.beam_score) - score) / std::max(1.0, std::fabs(score));
        EXPECT_LE(difference, 1e-5);
        largest = std::max(largest, difference);
      }
    }
    test::record_largest(model, "beam_scores", largest);
  });
}

std::string case_name(const testing::TestParamInfo<BeamGoldens::ParamType>& info) {
  return test::test_name(std::get<0>(info.param), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Models, BeamGoldens, testing::ValuesIn(test::with_ranks(test::having("beam", test::golden_folders()))), case_name);

}  // namespace
}  // namespace lockstep
