// Beam search.
#include <limits>

#include <gtest/gtest.h>

#include "engine/runtime/coordinator.h"
#include "tests/engine/runtime/coordinator_run.h"

namespace lockstep::engine {
namespace {

using testing::Answers;
using testing::answers_of;
using testing::beam_request;
using testing::default_options;
using testing::expect_same;
using testing::HistoryModel;
using testing::kVocab;
using testing::mixed_requests;

TEST(Coordinator, BeamSearchesDoNotDependOnHowTheWorkIsScheduledNorBlockEachOther) {
  std::vector<Request> requests = {beam_request(1, 4, EarlyStopping::kNo, 1.0f), beam_request(2, 3, EarlyStopping::kYes, 2.0f),
                                   beam_request(3, 5, EarlyStopping::kNever, 0.5f), beam_request(4, 1, EarlyStopping::kNo, 0.0f)};
  for (const Request& other : mixed_requests(6)) requests.push_back(other);
  HistoryModel reference_model(64, 16, kVocab);
  CoordinatorOptions options = default_options();
  options.scheduler.max_num_seqs = 32;
  const Answers expected = answers_of(options, reference_model, requests);
  std::size_t at_end_token = 0;
  for (RequestId id = 1; id <= 4; ++id) {
    const std::vector<Choice>& choices = expected.at(id).choices;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i].error, "");
      EXPECT_EQ(choices[i].index, i);
      if (i > 0) {
        EXPECT_GE(choices[i - 1].beam_score, choices[i].beam_score);
      }
      for (std::size_t other = 0; other < i; ++other) EXPECT_NE(choices[i].tokens, choices[other].tokens);
      at_end_token += choices[i].finish_reason == FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GT(at_end_token, 3u);
  std::size_t variants = 0;
  for (const std::size_t max_num_seqs : {1u, 2u, 3u, 6u}) {  // fewer than there are beams, too
    for (const std::size_t num_blocks : {16u, 100u}) {
      for (const std::size_t preempt_every : {0u, 2u}) {
        options = default_options();
        options.scheduler.max_num_seqs = max_num_seqs;
        options.scheduler.block_size = 4;
        options.scheduler.num_blocks = num_blocks;
        options.scheduler.preempt_every = preempt_every;
        options.scheduler.prefix_caching = ++variants % 3 != 0;
        HistoryModel model(num_blocks, 4, kVocab);
        SCOPED_TRACE(::testing::Message() << max_num_seqs << " sequences, " << num_blocks << " blocks, preempt every " << preempt_every);
        expect_same(expected, answers_of(options, model, requests));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Coordinator, ABeamIsGreedySearchWhereThereIsOne) {
  HistoryModel model(64, 16, kVocab);
  Request beam = beam_request(1, 1, EarlyStopping::kYes, 1.0f);
  Request greedy = beam;
  greedy.id = 2;
  greedy.sampling.beams.reset();
  greedy.sampling.temperature = 0.0f;
  const Answers answers = answers_of(default_options(), model, {beam, greedy});
  EXPECT_EQ(answers.at(1).choices[0].tokens, answers.at(2).choices[0].tokens);
}

TEST(Coordinator, ABeamSearchThatCanNotBeIsRefusedAndOneWithoutFiniteLogitsFailsAlone) {
  class Overflow : public HistoryModel {
   public:
    Overflow() : HistoryModel(64, 16, kVocab) {}
    std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
      std::vector<float> row = HistoryModel::logits(tokens);
      if (tokens.size() == 16) row[50] = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
  };
  Overflow model;
  const Answers answers =
      answers_of(default_options(), model, {beam_request(2, 3, EarlyStopping::kNo, 1.0f), beam_request(3, 3, EarlyStopping::kNo, 1.0f)});
  for (const Choice& choice : answers.at(2).choices) EXPECT_EQ(choice.error, non_finite_error());
  for (const Choice& choice : answers.at(3).choices) EXPECT_EQ(choice.error, "");
  Coordinator coordinator(default_options(), model, nullptr);
  Request request = beam_request(1, 100, EarlyStopping::kNo, 1.0f);
  EXPECT_THROW(coordinator.submit(request, {}), std::invalid_argument);
  request = beam_request(1, 2, EarlyStopping::kNo, 1.0f);
  request.sampling.n = 3;
  EXPECT_THROW(coordinator.submit(request, {}), std::invalid_argument);
  EXPECT_EQ(coordinator.num_in_flight(), 0u);
}

}  // namespace
}  // namespace lockstep::engine
