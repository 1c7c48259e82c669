// Whoever walks a step: the same bits.
#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep::test {
namespace {

using device::cpu::Walk;

/// Logits of a prompt, and tokens decoded behind it with those of other sequences.
struct Answers {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<std::int32_t>> tokens;
  bool operator==(const Answers&) const = default;
};

Answers answers_of(const std::filesystem::path& model, int ranks, std::size_t threads, Walk walk) {
  RunSetup setup = exact_setup(model, ranks);
  setup.session.dtype.reset();
  setup.open_rank = [&](comm::Communicator&) {
    return comm::CudaRank{device::make_cpu_device({.num_threads = threads, .isa = setup.isa, .walk = walk}), nullptr};
  };
  Answers answers;
  with_session(setup, [&](engine::Session& session) {
    answers.logits = prompt_logits(session, {5, 6, 7, 8, 9, 10, 11});
    answers.tokens.resize(3);
    for (std::size_t i = 0; i < 3; ++i) {
      engine::Request request;
      request.id = i;
      request.prompt = {5, 6, static_cast<std::int32_t>(7 + i)};
      request.sampling.seed = i;
      request.sampling.temperature = i == 0 ? 0.0f : 1.0f;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = 80;
      session.engine().submit(request, [&](engine::Completion&& done) { answers.tokens[done.id] = done.choices.at(0).tokens; });
    }
    while (session.engine().step()) {
    }
  });
  return answers;
}

TEST(Walk, ChangesNoBitOfAnAnswer) {
  const TemporaryFolder folder;
  for (const device::DType dtype : {device::DType::kF32, device::DType::kQ8_0}) {
    const auto path = folder.path() / "model.gguf";
    TinyModel model;
    model.feed_forward = 512;
    write_tiny_gguf(path, dtype, model);
    const Answers expected = answers_of(path, 1, 1, Walk::kAll);
    ASSERT_EQ(expected.tokens.at(2).size(), 80u);
    for (const auto& [ranks, threads] : {std::pair<int, std::size_t>{1, 2}, {1, 3}, {1, 4}, {2, 2}}) {
      for (const Walk walk : {Walk::kAll, Walk::kAsTheyCan, Walk::kHalf}) {
        EXPECT_TRUE(answers_of(path, ranks, threads, walk) == expected)
            << ranks << " ranks, " << threads << " threads, walk " << static_cast<int>(walk);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::test
