// Beam search of small models against the reference: tokens identical, scores to fp32.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path models() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  return (wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA)) / "models";
}

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

/// A model, ranks, and sequences that run at a time.
class BeamGoldens : public testing::TestWithParam<std::tuple<std::string, std::pair<int, std::size_t>>> {};

TEST_P(BeamGoldens, TokensAndScoresAreThoseOfTheReference) {
  const fs::path folder = models() / std::get<0>(GetParam());
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(folder / "golden.json"));
  const auto [ranks, max_num_seqs] = std::get<1>(GetParam());
  test::RunSetup setup = test::exact_setup(folder, ranks);
  setup.session.max_num_seqs = max_num_seqs;
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
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const nlohmann::json& beams = cases[i].at("beams");
      ASSERT_EQ(completions[i].choices.size(), beams.size());
      for (std::size_t at = 0; at < beams.size(); ++at) {
        SCOPED_TRACE(testing::Message() << "case " << i << ", result " << at);
        const engine::Choice& choice = completions[i].choices[at];
        EXPECT_EQ(choice.error, "");
        EXPECT_EQ(choice.tokens, beams[at].at("tokens").get<std::vector<std::int32_t>>());
        const double score = beams[at].at("score").get<double>();
        EXPECT_NEAR(static_cast<double>(choice.beam_score), score, 1e-5 * std::max(1.0, std::fabs(score)));
      }
    }
  });
}

std::string test_name(const testing::TestParamInfo<BeamGoldens::ParamType>& info) {
  const auto [ranks, max_num_seqs] = std::get<1>(info.param);
  std::string name = std::get<0>(info.param) + "_ranks" + std::to_string(ranks) + "_sequences" + std::to_string(max_num_seqs);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, BeamGoldens,
                         testing::Combine(testing::Values("llama-mha", "llama-gqa", "llama-tied", "llama-bias", "llama-headdim"),
                                          testing::Values(std::pair<int, std::size_t>{1, 32}, std::pair<int, std::size_t>{3, 32},
                                                          std::pair<int, std::size_t>{2, 3})),
                         test_name);

}  // namespace
}  // namespace lockstep
