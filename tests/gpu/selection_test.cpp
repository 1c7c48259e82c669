// Selection on GPUs: the token, the log-probabilities and the errors of the sampler on the host, bit for bit.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/gpu/gpus.h"
#include "tests/support/selection_run.h"

namespace lockstep::test {
namespace {

class SelectionOnGpus : public OnGpus<testing::TestWithParam<int>> {
 protected:
  int ranks() const override { return GetParam(); }
  RunSetup setup() const {
    RunSetup setup;
    setup.ranks = GetParam();
    return on_gpus(setup);
  }
};

TEST_P(SelectionOnGpus, GivesWhatTheWholeRowGivesOnTheHost) {
  std::size_t num_enough = 0;
  std::size_t num_cases = 0;
  const std::vector<std::size_t> sizes =
      kEmulated ? std::vector<std::size_t>{20, 257, 1000} : std::vector<std::size_t>{40, 257, 1000, 50001, 151936};
  for (const std::size_t vocab_size : sizes) {
    const std::vector<SelectionCase> cases =
        random_selection_cases(kEmulated ? 24 : 200, vocab_size, static_cast<std::uint32_t>(vocab_size));
    num_enough += expect_outcomes_of_whole_rows(cases, select_on_ranks(setup(), cases));
    num_cases += cases.size();
  }
  EXPECT_GT(num_enough, num_cases / 3);
}

/// One rank's part is then longer than what one block adds up at a time.
TEST_P(SelectionOnGpus, LongRowsAreAddedUpInParts) {
  std::vector<SelectionCase> cases = random_selection_cases(2, 20011, 9);
  for (SelectionCase& to : cases) {
    const auto seed = to.params.seed;
    to.params = {.temperature = 0.6f, .top_p = 0.3f, .seed = seed};
    to.params.logprobs = 3;
    to.num_candidates = 1024;
  }
  cases[0].logits[11] = cases[0].logits[20010] = 20.0f;
  expect_outcomes_of_whole_rows(cases, select_on_ranks(setup(), cases));
}

TEST_P(SelectionOnGpus, ErrorsOfTheChangesAreThoseOfTheSampler) {
  std::vector<SelectionCase> cases = random_selection_cases(2, 48, 5);
  for (SelectionCase& to : cases) to.params = {};
  cases[0].logits[3] = 3e38f;
  cases[0].params.logit_bias = {{3, 3e38f}};
  for (std::int32_t id = 0; id < 48; ++id) cases[1].params.logit_bias.emplace_back(id, -INFINITY);
  const std::vector<SelectionOutcome> outcomes = select_on_ranks(setup(), cases);
  EXPECT_EQ(expect_outcomes_of_whole_rows(cases, outcomes), 2u);
  EXPECT_EQ(outcomes[0].sample.error, engine::changes_error(false));
  EXPECT_EQ(outcomes[1].sample.error, engine::changes_error(true));
}

/// Logits that are no numbers are an error of their row, found elsewhere; here they must do no harm.
TEST_P(SelectionOnGpus, RowsThatAreNotFiniteLeaveTheOthersAlone) {
  std::vector<SelectionCase> cases = random_selection_cases(4, 300, 8);
  cases[1].logits.assign(300, std::nanf(""));
  cases[2].logits[7] = INFINITY;
  cases[2].logits[8] = -INFINITY;
  std::vector<SelectionOutcome> outcomes = select_on_ranks(setup(), cases);
  outcomes[1].is_enough = outcomes[2].is_enough = false;
  expect_outcomes_of_whole_rows(cases, outcomes);
}

INSTANTIATE_TEST_SUITE_P(Gpus, SelectionOnGpus, testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep::test
