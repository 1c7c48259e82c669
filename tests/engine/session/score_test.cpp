// The log-probabilities of a prompt are those of its whole rows, bit for bit, whatever the ranks, the pieces of the prompt and the company.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "engine/sampling/sampler.h"
#include "engine/score/perplexity.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep::test {
namespace {

using engine::Completion;
using engine::Request;
using engine::TokenLogprob;

std::vector<std::int32_t> tokens_of_text(std::size_t count) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(3 + (i * i * 7 + i * 31) % 250));
  return tokens;
}

std::vector<Request> score_requests() {
  std::vector<Request> requests(4);
  const std::size_t lengths[] = {70, 3, 41, 70};
  const std::size_t firsts[] = {1, 2, 30, 66};  // the last one may use what the first has computed
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = i;
    requests[i].prompt = tokens_of_text(lengths[i]);
    requests[i].first_scored = firsts[i];
    requests[i].sampling.max_tokens = i == 2 ? 3 : 0;
    requests[i].sampling.logprobs = static_cast<std::int32_t>(i) - 1;
    requests[i].sampling.temperature = 0.0f;
  }
  return requests;
}

std::vector<Completion> run(engine::Session& session, const std::vector<Request>& requests) {
  std::vector<Completion> completions(requests.size());
  for (const Request& request : requests)
    session.engine().submit(request, [&](Completion&& completion) { completions[completion.id] = std::move(completion); });
  while (session.engine().step()) {
  }
  return completions;
}

void expect_scores_of_rows(const Request& request, const std::vector<std::vector<float>>& rows, const Completion& completion) {
  engine::Sampler sampler;
  ASSERT_EQ(completion.prompt_logprobs.size(), request.prompt.size() - request.first_scored);
  for (std::size_t at = request.first_scored; at < request.prompt.size(); ++at) {
    const std::vector<float>& row = rows[at - 1];
    const engine::Sample expected = sampler.score(row, request.prompt[at], std::max(request.sampling.logprobs, 0));
    const TokenLogprob& got = completion.prompt_logprobs[at - request.first_scored];
    EXPECT_EQ(got.token, request.prompt[at]);
    EXPECT_EQ(got.logprob, expected.logprob) << at;
    EXPECT_EQ(got.top, expected.top) << at;
    EXPECT_EQ(got.is_greedy, std::max_element(row.begin(), row.end()) - row.begin() == request.prompt[at]);
  }
}

class Scores : public testing::TestWithParam<int> {
 protected:
  std::filesystem::path write(device::DType dtype) {
    const std::filesystem::path path = folder_.path() / "model.gguf";
    write_tiny_gguf(path, dtype);
    return path;
  }

 private:
  TemporaryFolder folder_;
};

TEST_P(Scores, AreThoseOfTheWholeRowsInAnyPieces) {
  const std::filesystem::path path = write(device::DType::kF32);
  std::vector<std::vector<float>> rows;
  with_session(exact_setup(path, 1), [&](engine::Session& session) { rows = prompt_logits(session, tokens_of_text(70)); });
  const std::vector<Request> requests = score_requests();
  for (const std::size_t chunk : {0u, 1u, 7u, 32u}) {
    for (const bool for_scoring : {false, true}) {
      SCOPED_TRACE(testing::Message() << "pieces of " << chunk << ", for scoring " << for_scoring);
      RunSetup setup = exact_setup(path, GetParam());
      setup.session.prefill_chunk = chunk;
      setup.session.for_scoring = for_scoring;
      setup.session.max_num_seqs = 3;
      setup.session.max_num_batched_tokens = 50;
      setup.session.block_size = 16;
      with_session(setup, [&](engine::Session& session) {
        const std::vector<Completion> completions = run(session, requests);
        for (const Request& request : requests) expect_scores_of_rows(request, rows, completions[request.id]);
        EXPECT_EQ(completions[2].choices[0].tokens.size(), 3u);
        EXPECT_EQ(session.engine().counters().fetched_rows, 0u);
        // Room for many rows of logits is room for many positions of a step.
        if (chunk == 0 && for_scoring) {
          EXPECT_LT(session.engine().counters().steps, 12u);
        }
      });
    }
  }
}

TEST_P(Scores, APerplexityHasTheSameBitsForRanksAndBatches) {
  const std::filesystem::path path = write(device::DType::kQ8_0);
  const std::vector<std::int32_t> text = tokens_of_text(150);
  const auto measure = [&](int ranks, std::size_t max_num_seqs, std::size_t window, std::size_t stride) {
    RunSetup setup = exact_setup(path, ranks);
    setup.session.dtype.reset();
    setup.session.max_num_seqs = max_num_seqs;
    setup.session.for_scoring = max_num_seqs > 2;
    engine::Perplexity result;
    with_session(setup, [&](engine::Session& session) {
      result = engine::measure_perplexity(session.engine(), text, {.window = window, .stride = stride, .stop = nullptr, .progress = {}});
    });
    return result;
  };
  for (const auto& [window, stride] : {std::pair{150u, 150u}, {50u, 50u}, {64u, 20u}}) {
    const engine::Perplexity alone = measure(1, 1, window, stride);
    const engine::Perplexity other = measure(GetParam(), 5, window, stride);
    EXPECT_EQ(alone.sum_logprob, other.sum_logprob) << window;
    EXPECT_EQ(alone.num_scored, window == 50u ? 147u : 149u);
    EXPECT_EQ(alone.perplexity(), other.perplexity());
    EXPECT_GT(alone.perplexity(), 1.0);
    EXPECT_TRUE(std::isfinite(alone.perplexity()));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Scores, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace lockstep::test
