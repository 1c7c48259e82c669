// N6: a token that is selected from the parts of a row on several ranks is the one that the sampler takes from the whole row, bit for bit.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/selection_run.h"

namespace lockstep::test {
namespace {

class Selection : public testing::TestWithParam<int> {
 protected:
  RunSetup setup() const {
    RunSetup setup;
    setup.ranks = GetParam();
    setup.isa = device::supported_isas().back();
    return setup;
  }
};

TEST_P(Selection, GivesWhatTheWholeRowGives) {
  std::size_t num_enough = 0;
  std::size_t num_cases = 0;
  for (const std::size_t vocab_size : {40u, 257u, 1000u, 4111u}) {
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(std::to_string(vocab_size) + " ids, seed " + std::to_string(seed));
      const std::vector<SelectionCase> cases = random_selection_cases(50, vocab_size, seed);
      num_enough += expect_outcomes_of_whole_rows(cases, select_on_ranks(setup(), cases));
      num_cases += cases.size();
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(num_enough, num_cases / 2);
  EXPECT_LT(num_enough, num_cases);  // some need the row: that happens, and is noticed
}

TEST_P(Selection, IsTheSameForEveryInstructionSetAndNumberOfThreads) {
  const std::vector<SelectionCase> cases = random_selection_cases(30, 3001, 77);
  for (const device::Isa isa : device::supported_isas()) {
    for (const std::size_t threads : {1, 3}) {
      RunSetup other = setup();
      other.isa = isa;
      other.threads = threads;
      EXPECT_GT(expect_outcomes_of_whole_rows(cases, select_on_ranks(other, cases)), 10u) << device::isa_name(isa) << ", " << threads;
    }
  }
}

TEST_P(Selection, LanguageModelRowsAreSeldomFetched) {
  std::vector<SelectionCase> cases = random_selection_cases(40, 5000, 3);
  for (SelectionCase& to : cases) {
    std::fill(to.logits.begin(), to.logits.end(), 0.0f);
    for (std::size_t i = 0; i < 30; ++i) to.logits[i * 166 + 7] = 14.0f - 0.3f * static_cast<float>(i);
    const auto seed = to.params.seed;
    to.params = {.temperature = 0.8f, .top_p = 0.9f, .seed = seed};
    to.params.logprobs = 5;
  }
  EXPECT_EQ(expect_outcomes_of_whole_rows(cases, select_on_ranks(setup(), cases)), cases.size());
}

TEST_P(Selection, ErrorsOfTheChangesAreThoseOfTheSampler) {
  std::vector<SelectionCase> cases = random_selection_cases(3, 48, 5);
  for (SelectionCase& to : cases) {
    to.params = {};
    to.prompt = {1};
    to.generated.clear();
  }
  cases[0].logits[3] = 3e38f;
  cases[0].params.logit_bias = {{3, 3e38f}};
  for (std::int32_t id = 0; id < 48; ++id) cases[1].params.logit_bias.emplace_back(id, -INFINITY);
  const std::vector<SelectionOutcome> outcomes = select_on_ranks(setup(), cases);
  EXPECT_GE(expect_outcomes_of_whole_rows(cases, outcomes), 2u);
  EXPECT_EQ(outcomes[0].sample.error, engine::changes_error(false));
  EXPECT_EQ(outcomes[1].sample.error, engine::changes_error(true));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Selection, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace lockstep::test
