// What a decode step costs besides its bytes, counted by the emulator: launches, kernels a layer, copies and waits.

#include <numeric>

#include <gtest/gtest.h>

#include "tests/simt/gpu_session.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

struct Cost {
  std::uint64_t launches = 0;  // outside of graphs
  std::uint64_t graph_launches = 0;
  std::uint64_t kernels = 0;
  std::uint64_t reductions = 0;
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
  std::uint64_t waits = 0;
};

Cost total() {
  const simt::Counters counters = simt::counters();
  Cost cost{.launches = counters.launches,
            .graph_launches = counters.graph_launches,
            .to_device = counters.host_to_device,
            .to_host = counters.device_to_host,
            .waits = counters.synchronisations};
  cost.reductions = counters.collectives;
  for (const auto& [name, runs] : counters.kernels) {
    cost.kernels += runs;
    if (name.find("one_shot") != std::string::npos || name.find("two_shot") != std::string::npos) cost.reductions += runs;
  }
  return cost;
}

engine::SamplingParams greedy() {
  engine::SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

/// Of one decode step of `sequences`, all ranks together.
Cost step_cost(int ranks, const test::TinyModel& tiny, const engine::SamplingParams& params = greedy(), engine::RequestId sequences = 3) {
  simt::reset();
  const test::TemporaryFolder folder;
  const auto model = folder.path() / "tiny.gguf";
  test::write_tiny_gguf(model, device::DType::kBF16, tiny);
  test::RunSetup setup = test::exact_setup(model, ranks);
  setup.session.dtype.reset();
  Cost before, after;
  test::with_session(test::on_gpus(setup), [&](engine::Session& session) {
    for (engine::RequestId id = 1; id <= sequences; ++id) {
      engine::Request request;
      request.id = id;
      request.prompt = {5, 6, static_cast<std::int32_t>(7 + id)};
      request.sampling = params;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = 8;
      session.engine().submit(std::move(request), [](engine::Completion&&) {});
    }
    for (int step = 0; step < 4; ++step) session.engine().step();  // prefill, the first decode, the recorded one
    before = total();
    session.engine().step();
    after = total();
    EXPECT_EQ(session.engine().counters().fetched_rows, 0u);
    while (session.engine().step()) {
    }
  });
  return {after.launches - before.launches,   after.graph_launches - before.graph_launches,
          after.kernels - before.kernels,     after.reductions - before.reductions,
          after.to_device - before.to_device, after.to_host - before.to_host,
          after.waits - before.waits};
}

class DecodeCost : public testing::TestWithParam<int> {};

TEST_P(DecodeCost, IsOneGraphLaunchOneCopyEachWayAndNineKernelsALayer) {
  const auto ranks = static_cast<std::uint64_t>(GetParam());
  const Cost one = step_cost(GetParam(), {.num_layers = 1}), three = step_cost(GetParam(), {.num_layers = 3});
  EXPECT_EQ(one.launches, 0u);
  EXPECT_EQ(one.graph_launches, ranks);
  EXPECT_EQ(one.to_device, ranks);  // the step
  EXPECT_EQ(one.to_host, ranks);    // the tops of its rows
  EXPECT_LE(one.waits, 2 * ranks);
  EXPECT_GT(three.kernels, one.kernels);
  EXPECT_LE(three.kernels - one.kernels, 2 * 9 * ranks);
  EXPECT_EQ(three.reductions - one.reductions, ranks > 1 ? 2 * 2 * ranks : 0);
  std::printf("%llu GPUs: %.1f kernels a layer and GPU, %llu besides\n", static_cast<unsigned long long>(ranks),
              static_cast<double>(three.kernels - one.kernels) / static_cast<double>(2 * ranks),
              static_cast<unsigned long long>((one.kernels - (three.kernels - one.kernels) / 2) / ranks));
}

/// Selecting tokens adds a few launches and one copy each way, and no wait before the one at the end: whatever the rows and the vocabulary.
TEST_P(DecodeCost, OfSampledTokensIsOneCopyMoreEachWay) {
  const auto ranks = static_cast<std::uint64_t>(GetParam());
  engine::SamplingParams params;
  params.temperature = 0.8f;
  params.top_k = 20;
  params.logprobs = 5;
  const Cost plain = step_cost(GetParam(), {});
  const Cost sampled = step_cost(GetParam(), {}, params);
  EXPECT_EQ(sampled.graph_launches, ranks);
  EXPECT_EQ(sampled.to_device, 2 * ranks);
  EXPECT_EQ(sampled.to_host, 2 * ranks);
  EXPECT_LE(sampled.waits, plain.waits + 2 * ranks);  // for the memory of the upload, and for what has come already
  const std::uint64_t reduction = ranks > 1 ? 1 : 0;
  EXPECT_EQ(sampled.launches, (3 + reduction) * ranks);  // maxima, candidates, sums
  params.repetition_penalty = 1.2f;
  EXPECT_EQ(step_cost(GetParam(), {}, params).launches, (5 + reduction) * ranks);  // the row as it was, and its best
  params.top_k = 0;
  params.top_p = 0.9f;
  const Cost more = step_cost(GetParam(), {.vocabulary = 97}, params, 2);
  EXPECT_EQ(more.launches, (6 + reduction) * ranks);
  EXPECT_EQ(more.to_device, sampled.to_device);
  EXPECT_EQ(more.to_host, sampled.to_host);
  EXPECT_EQ(more.waits, sampled.waits);
}

INSTANTIATE_TEST_SUITE_P(Gpus, DecodeCost, testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
