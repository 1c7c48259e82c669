// Models whose layers do not see equally far: the sliding ones give back their blocks, and no answer changes for it.

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/session_run.h"

namespace lockstep::test {
namespace {

using engine::Completion;
using engine::Request;

constexpr std::size_t kBlockSize = 16;

std::filesystem::path model_of(const std::string& name) { return std::filesystem::path(LOCKSTEP_TEST_DATA) / "models" / name; }

/// Greedy requests that begin alike. Windows of these models are 16 wide, attention spans 64.
std::vector<Request> requests_of(std::size_t count, std::size_t prompt, std::uint32_t answer) {
  std::vector<Request> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    requests[i].id = i;
    for (std::size_t at = 0; at < prompt; ++at)
      requests[i].prompt.push_back(static_cast<std::int32_t>(5 + (at * at + (at > 90 ? i : 0)) % 40));
    requests[i].sampling.temperature = 0.0f;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.max_tokens = answer;
  }
  return requests;
}

std::vector<std::vector<std::int32_t>> run(engine::Session& session, const std::vector<Request>& requests) {
  std::vector<std::vector<std::int32_t>> answers(requests.size());
  for (const Request& request : requests) {
    session.engine().submit(request, [&](Completion&& done) {
      EXPECT_EQ(done.choices.at(0).error, "");
      answers[done.id] = done.choices[0].tokens;
    });
  }
  while (session.engine().step()) {
  }
  return answers;
}

RunSetup setup_of(const std::string& model, int ranks) {
  RunSetup setup = exact_setup(model_of(model), ranks);
  setup.session.block_size = kBlockSize;
  setup.session.max_num_seqs = 3;
  return setup;
}

class SlidingLayers : public testing::TestWithParam<std::string> {};

/// What the engine says, token by token with blocks coming and going, is what the logits of the whole text say.
TEST_P(SlidingLayers, GiveTheAnswersThatTheWholeTextGives) {
  const std::vector<Request> requests = requests_of(3, 130, 90);
  for (const device::KvQuantisation quantised : {device::KvQuantisation::kNone, device::KvQuantisation::kInt8}) {
    for (const int ranks : {1, 2}) {
      for (const bool prefix_caching : {false, true}) {
        RunSetup setup = setup_of(GetParam(), ranks);
        setup.session.kv_quantised = quantised;
        setup.session.prefix_caching = prefix_caching;
        setup.session.preempt_every = ranks == 2 ? 23 : 0;
        setup.session.prefill_chunk = prefix_caching ? 0 : 37;
        setup.threads = 2;
        with_session(setup, [&](engine::Session& session) {
          const auto answers = run(session, requests);
          for (const Request& request : requests) {
            std::vector<std::int32_t> text = request.prompt;
            text.insert(text.end(), answers[request.id].begin(), answers[request.id].end());
            ASSERT_EQ(text.size(), 220u);
            const auto rows = prompt_logits(session, text);
            for (std::size_t at = request.prompt.size(); at < text.size(); ++at) {
              const auto best = std::max_element(rows[at - 1].begin(), rows[at - 1].end()) - rows[at - 1].begin();
              ASSERT_EQ(best, text[at]) << ranks << " ranks, prefix caching " << prefix_caching << ", position " << at;
            }
          }
        });
      }
    }
  }
}

/// Three answers of 200 tokens fit where those of as many blocks in every layer would not.
TEST_P(SlidingLayers, LeaveRoomForMore) {
  RunSetup setup = setup_of(GetParam(), 1);
  std::size_t stretch_bytes = 0;
  with_session(setup, [&](engine::Session& session) { stretch_bytes = session.kv_bytes() / (session.kv_tokens() / kBlockSize); });
  const std::size_t stretches = 3 * ((20 + 200 + kBlockSize - 1) / kBlockSize);
  setup.session.kv_cache_bytes = stretch_bytes * stretches * 4 / 5;
  with_session(setup, [&](engine::Session& session) {
    const auto answers = run(session, requests_of(3, 20, 200));
    for (const auto& answer : answers) EXPECT_EQ(answer.size(), 200u);
    EXPECT_EQ(session.engine().counters().preemptions, 0u);
    EXPECT_LT(session.kv_tokens(), 3u * 220u);
  });
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingLayers, testing::Values("gemma2", "gemma3"), [](const auto& model) { return model.param; });

}  // namespace
}  // namespace lockstep::test
