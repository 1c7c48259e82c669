// The numeric contract on emulated GPUs: tokens, log-probabilities and logits are the same bytes over ranks, batch mates, prefill chunks,
// preemption, graphs, the order in which threads and streams run. Each axis against one baseline; LOCKSTEP_CONTRACT=full runs the product.

#include <bit>
#include <cstdlib>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/simt/gpu_session.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Way {
  int ranks = 1;
  std::size_t sequences = 8;
  std::size_t chunk = 512;
  std::size_t preempt_every = 0;
  bool graphs = true;
  simt::Schedule schedule = simt::Schedule::kForward;
  simt::StreamOrder stream_order = simt::StreamOrder::kEager;
  std::uint64_t seed = 1;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.ranks << " GPUs, " << way.sequences << " sequences, chunk " << way.chunk << ", preempt every " << way.preempt_every
       << (way.graphs ? ", graphs" : ", eager") << ", schedule " << static_cast<int>(way.schedule) << ", streams "
       << static_cast<int>(way.stream_order) << ", seed " << way.seed;
}

engine::Request request(engine::RequestId id, std::size_t prompt_tokens, std::uint32_t new_tokens) {
  engine::Request made;
  made.id = id;
  for (std::size_t i = 0; i < prompt_tokens; ++i) made.prompt.push_back(3 + static_cast<std::int32_t>((i * 37 + id * 11) % 250));
  made.sampling.max_tokens = new_tokens;
  made.sampling.ignore_eos = true;
  made.sampling.logprobs = 2;
  made.sampling.temperature = id % 2 == 0 ? 0.0f : 0.8f;
  made.sampling.seed = 100 + id;
  return made;
}

std::string text_of(const engine::Completion& done) {
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

class ContractOnEmulatedGpus : public testing::TestWithParam<device::DType> {
 protected:
  static constexpr std::size_t kRequests = 4;

  void SetUp() override {
    simt::reset();
    test::write_tiny_gguf(model_, GetParam(), {.num_layers = 1, .feed_forward = 160});
  }
  void TearDown() override { simt::reset(); }

  /// The answers by request, and the bits of the logits of one prompt.
  std::vector<std::string> run(const Way& way) {
    simt::reset();
    simt::config().schedule = way.schedule;
    simt::config().stream_order = way.stream_order;
    simt::config().seed = way.seed;
    simt::config().device_count = 9;
    simt::config().shuffle_blocks = way.schedule == simt::Schedule::kRandom;
    simt::config().graph_order = way.schedule == simt::Schedule::kRandom ? simt::GraphOrder::kRandom : simt::GraphOrder::kCaptured;
    test::RunSetup setup = test::exact_setup(model_, way.ranks);
    setup.session.dtype.reset();
    setup.session.block_size = 16;
    setup.session.kv_cache_bytes = 1u << 20;
    setup.session.max_num_seqs = way.sequences;
    setup.session.max_num_batched_tokens = 128;
    setup.session.prefill_chunk = way.chunk;
    setup.session.preempt_every = way.preempt_every;
    std::vector<std::string> answers(kRequests);
    test::with_session(test::on_gpus(setup, way.graphs), [&](engine::Session& session) {
      const std::size_t prompts[kRequests] = {5, 33, 17, 1};
      for (std::size_t i = 0; i < kRequests; ++i) {
        session.engine().submit(request(i, prompts[i], 4), [&answers, i](engine::Completion&& done) { answers[i] = text_of(done); });
      }
      while (session.engine().step()) {
      }
      std::ostringstream bits;
      std::vector<std::int32_t> prompt = request(9, 70, 1).prompt;
      for (const auto& row : test::prompt_logits(session, prompt)) {
        for (const float logit : row) bits << std::bit_cast<std::uint32_t>(logit) << ' ';
      }
      answers.push_back(bits.str());
    });
    EXPECT_EQ(simt::last_error(), "");
    return answers;
  }

 private:
  test::TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "tiny.gguf";
};

/// One axis each. The kernels differ by type, the rest does not: so one type gets the most.
std::vector<Way> ways(device::DType dtype) {
  std::vector<Way> all;
  const bool most = dtype == device::DType::kBF16;
  for (const int ranks : {2, 3, 4, 9}) {
    if (most || ranks == 3) all.push_back({.ranks = ranks});
  }
  all.push_back({.sequences = 1});
  all.push_back({.sequences = 2});
  for (const std::size_t chunk : {1, 16}) all.push_back({.chunk = chunk});
  all.push_back({.preempt_every = 3});
  all.push_back({.graphs = false});
  all.push_back({.schedule = simt::Schedule::kReverse});
  all.push_back({.schedule = simt::Schedule::kOneWarpFirst});
  for (std::uint64_t seed = 1; seed <= (most ? 10 : 2); ++seed)
    all.push_back({.ranks = seed % 2 == 0 ? 2 : 1, .schedule = simt::Schedule::kRandom, .seed = seed});
  for (const simt::StreamOrder order : {simt::StreamOrder::kLazy, simt::StreamOrder::kLastFirst, simt::StreamOrder::kRandom})
    all.push_back({.ranks = 2, .stream_order = order});
  return all;
}

std::vector<Way> product() {
  std::vector<Way> all;
  for (const int ranks : {1, 2, 3, 4})
    for (const std::size_t sequences : {1, 8})
      for (const std::size_t chunk : {1, 16, 512})
        for (const bool graphs : {true, false})
          for (const simt::Schedule schedule : {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom})
            for (const simt::StreamOrder order : {simt::StreamOrder::kEager, simt::StreamOrder::kLazy, simt::StreamOrder::kRandom})
              all.push_back({ranks, sequences, chunk, 0, graphs, schedule, order, 7});
  return all;
}

TEST_P(ContractOnEmulatedGpus, AnswersAndLogitsAreTheSameBytes) {
  const char* wanted = std::getenv("LOCKSTEP_CONTRACT");
  const bool full = wanted != nullptr && std::string(wanted) == "full";
  const std::vector<std::string> expected = run({});
  for (const std::string& answer : expected) ASSERT_FALSE(answer.empty());
  for (const Way& way : full ? product() : ways(GetParam())) {
    const std::vector<std::string> got = run(way);
    EXPECT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i)
      EXPECT_TRUE(got[i] == expected[i]) << "answer " << i << ": " << testing::PrintToString(way);
    if (HasFailure()) return;  // the first way that differs says enough
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ContractOnEmulatedGpus,
                         testing::Values(device::DType::kBF16, device::DType::kF16, device::DType::kQ4_1, device::DType::kF32),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

}  // namespace
}  // namespace lockstep
