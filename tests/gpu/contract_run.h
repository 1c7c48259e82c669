#pragma once

#include <bit>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu/gpus.h"
#include "tests/support/tiny_model.h"

/// The numeric contract on GPUs: a few requests and the bytes of their answers, for whatever way they are computed.
namespace lockstep::test {

/// What must not change an answer.
struct GpuWay {
  int ranks = 1;
  std::size_t sequences = 8;
  std::size_t chunk = 512;
  std::size_t preempt_every = 0;
  bool graphs = true;
};

inline void PrintTo(const GpuWay& way, std::ostream* out) {
  *out << way.ranks << " GPUs, " << way.sequences << " sequences, chunk " << way.chunk << ", preempt every " << way.preempt_every
       << (way.graphs ? ", graphs" : ", eager");
}

/// @param ids  of the vocabulary that prompts are made of, behind three specials
inline engine::Request contract_request(engine::RequestId id, std::size_t prompt_tokens, std::uint32_t new_tokens, std::size_t ids = 250) {
  engine::Request made;
  made.id = id;
  for (std::size_t i = 0; i < prompt_tokens; ++i) made.prompt.push_back(3 + static_cast<std::int32_t>((i * 37 + id * 11) % ids));
  made.sampling.max_tokens = new_tokens;
  made.sampling.ignore_eos = true;
  made.sampling.logprobs = 2;
  made.sampling.temperature = id % 2 == 0 ? 0.0f : 0.8f;
  made.sampling.seed = 100 + id;
  return made;
}

inline std::string text_of(const engine::Completion& done) {
  std::ostringstream text;
  text << done.id << std::hex;
  for (const engine::Choice& choice : done.choices) {
    text << ' ' << choice.error;
    for (const engine::TokenLogprob& token : choice.logprobs) {
      text << ' ' << token.token << ':' << std::bit_cast<std::uint32_t>(token.logprob);
      for (const auto& [id, logprob] : token.top) text << ',' << id << '=' << std::bit_cast<std::uint32_t>(logprob);
    }
  }
  return text.str();
}

/// The answers by request, and the bits of the logits of one prompt.
/// @param dtype  of the weights; none: as they are stored
inline std::vector<std::string> answers_of(const std::filesystem::path& model, const GpuWay& way,
                                           std::optional<device::DType> dtype = std::nullopt, std::size_t ids = 250) {
  constexpr std::size_t kPrompts[] = {5, 33, 17, 1};
  RunSetup setup = exact_setup(model, way.ranks);
  setup.session.dtype = dtype;
  setup.session.block_size = 16;
  setup.session.kv_cache_bytes = 1u << 20;
  setup.session.max_num_seqs = way.sequences;
  setup.session.max_num_batched_tokens = 128;
  setup.session.prefill_chunk = way.chunk;
  setup.session.preempt_every = way.preempt_every;
  std::vector<std::string> answers(std::size(kPrompts));
  with_session(on_gpus(setup, way.graphs), [&](engine::Session& session) {
    for (std::size_t i = 0; i < answers.size(); ++i) {
      session.engine().submit(contract_request(i, kPrompts[i], 4, ids),
                              [&answers, i](engine::Completion&& done) { answers[i] = text_of(done); });
    }
    while (session.engine().step()) {
    }
    std::ostringstream bits;
    for (const auto& row : prompt_logits(session, contract_request(9, 70, 1, ids).prompt)) {
      for (const float logit : row) bits << std::bit_cast<std::uint32_t>(logit) << ' ';
    }
    answers.push_back(bits.str());
  });
  EXPECT_EQ(fault_of_gpus(), "");
  return answers;
}

/// Whether the answers are the same bytes; says which is not.
inline testing::AssertionResult same_answers(const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  if (found.size() != expected.size()) return testing::AssertionFailure() << found.size() << " answers, not " << expected.size();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].empty() || found[i] != expected[i]) return testing::AssertionFailure() << "answer " << i << " differs";
  }
  return testing::AssertionSuccess();
}

}  // namespace lockstep::test
