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

/// Of one decode step of three sequences, all ranks together.
Cost step_cost(int ranks, std::size_t layers) {
  simt::reset();
  const test::TemporaryFolder folder;
  const auto model = folder.path() / "tiny.gguf";
  test::write_tiny_gguf(model, device::DType::kBF16, {.num_layers = layers});
  test::RunSetup setup = test::exact_setup(model, ranks);
  setup.session.dtype.reset();
  Cost before, after;
  test::with_session(test::on_gpus(setup), [&](engine::Session& session) {
    for (engine::RequestId id = 1; id <= 3; ++id) {
      engine::Request request;
      request.id = id;
      request.prompt = {5, 6, static_cast<std::int32_t>(7 + id)};
      request.sampling.temperature = 0.0f;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = 8;
      session.engine().submit(std::move(request), [](engine::Completion&&) {});
    }
    for (int step = 0; step < 4; ++step) session.engine().step();  // prefill, the first decode, the recorded one
    before = total();
    session.engine().step();
    after = total();
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
  const Cost one = step_cost(GetParam(), 1), three = step_cost(GetParam(), 3);
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

INSTANTIATE_TEST_SUITE_P(Gpus, DecodeCost, testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
