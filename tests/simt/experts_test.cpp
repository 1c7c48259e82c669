// Mixtures of experts on emulated GPUs: in fp32 the bits of the CPU device.

#include "device/cuda/experts.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/rows.h"
#include "simt/simt.h"
#include "tests/simt/device_rows.h"

namespace lockstep::device::cuda {
namespace {

using reference::count_different;
using reference::make_weight;
using reference::random_floats;
using reference::StoredWeight;

constexpr std::size_t kTokens = 5, kExperts = 4, kHidden = 48, kInner = 96;

class CudaExperts : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  std::unique_ptr<Device> cpu_ = make_cpu_device({1});
  TestStream stream_;
};

TEST_F(CudaExperts, RoutesAsTheCpuDoes) {
  for (const std::size_t experts : {2, 5, 60}) {
    std::vector<float> logits = random_floats(kTokens * experts, 1, 4.0f);
    logits[0] = logits[1];
    logits[experts] = std::nanf("");
    for (const bool renormalised : {false, true}) {
      const Routing routing{.per_token = 2, .renormalised = renormalised};
      const reference::OwnedMatrix in = reference::upload(*cpu_, logits, experts);
      const reference::OwnedMatrix out = reference::make_matrix(*cpu_, Activation::kFloat32, kTokens, experts);
      cpu_->route(in.matrix, kTokens, routing, out.matrix);
      const DeviceRows from = upload_rows(logits, experts), to = make_rows(Activation::kFloat32, kTokens, experts);
      route(stream_.launch(), from.rows, kTokens, routing, to.rows);
      stream_.synchronize();
      EXPECT_EQ(count_different(to.values(), reference::download(*cpu_, out.matrix, kTokens)), 0u) << experts;
    }
  }
}

/// The same weights on both devices, with a root for each leaf of the inner columns.
struct Scene {
  std::vector<Leaf> leaves;
  std::vector<StoredWeight> stored;
  std::vector<std::unique_ptr<Weight>> weights;

  Scene(Device* cpu, DType dtype, bool two_roots) : leaves(reference::make_leaves(dtype, kInner, 3)) {
    if (two_roots) {  // leaf 0 and 1 to the first, leaf 2 to the second
      for (Leaf& leaf : leaves) leaf.merges = 0;
      leaves[1] = {leaves[1].end, 1, true};
      leaves[2].ends_root = true;
    }
    std::vector<Leaf> apart = leaves;
    for (Leaf& leaf : apart) leaf = {leaf.end, 0, true};
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      stored.push_back(make_weight(dtype, 2 * kInner, kHidden, {{kHidden, 0, true}}, 10 + e));
      stored.push_back(make_weight(dtype, kHidden, kInner, apart, 20 + e));
    }
    for (const StoredWeight& each : stored) {
      weights.push_back(cpu != nullptr ? cpu->load_weight(each.spec, each.reader())
                                       : std::unique_ptr<Weight>(load_cuda_weight(each.spec, each.reader())));
    }
  }
  std::vector<Expert> experts() const {
    std::vector<Expert> all;
    for (std::size_t e = 0; e < kExperts; ++e) all.push_back({weights[2 * e].get(), weights[2 * e + 1].get()});
    return all;
  }
  /// With biases of `gate_up`, [experts, 2 * inner], and of `down`, [experts, hidden].
  std::vector<Expert> experts(const float* gate_up, const float* down) const {
    std::vector<Expert> all = experts();
    for (std::size_t e = 0; e < kExperts; ++e) {
      all[e].gate_up_bias = gate_up + e * 2 * kInner;
      all[e].down_bias = down + e * kHidden;
    }
    return all;
  }
};

std::vector<float> some_routing() {
  std::vector<float> routing = random_floats(kTokens * kExperts, 5);
  for (std::size_t i = 0; i < routing.size(); ++i) routing[i] = i % 3 == 0 ? 0.0f : std::fabs(routing[i]);
  return routing;
}

TEST_F(CudaExperts, InFloat32HaveTheBitsOfTheCpuDevice) {
  const std::vector<float> x = random_floats(kTokens * kHidden, 4), routing = some_routing();
  for (const bool two_roots : {false, true}) {
    const std::size_t roots = two_roots ? 2 : 1;
    const Scene on_cpu(cpu_.get(), DType::kF32, two_roots), on_gpu(nullptr, DType::kF32, two_roots);
    const reference::OwnedMatrix h = reference::upload(*cpu_, x, kHidden), weights = reference::upload(*cpu_, routing, kExperts);
    const reference::OwnedMatrix expected = reference::make_matrix(*cpu_, Activation::kFloat32, roots * kTokens, kHidden);
    cpu_->experts(h.matrix, kTokens, weights.matrix, on_cpu.experts(), {Nonlinearity::kSilu}, on_cpu.leaves, expected.matrix);
    for (const simt::Schedule schedule : {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom}) {
      simt::config().schedule = schedule;
      const DeviceRows in = upload_rows(x, kHidden), by = upload_rows(routing, kExperts);
      const DeviceRows out = make_rows(Activation::kFloat32, roots * kTokens, kHidden);
      ExpertSums sums;
      sums.run(stream_.launch(), in.rows, kTokens, by.rows, on_gpu.experts(), {Nonlinearity::kSilu}, on_gpu.leaves, out.rows);
      stream_.synchronize();
      EXPECT_EQ(count_different(out.values(), reference::download(*cpu_, expected.matrix, roots * kTokens)), 0u) << roots << " roots";
    }
  }
}

TEST_F(CudaExperts, WithBiasesAndLimitsInFloat32HaveTheBitsOfTheCpuDevice) {
  const std::vector<float> x = random_floats(kTokens * kHidden, 4), routing = some_routing();
  const std::vector<float> gate_up = random_floats(kExperts * 2 * kInner, 6), down = random_floats(kExperts * kHidden, 7);
  const DeviceMemory gate_up_there = to_device(gate_up), down_there = to_device(down);
  const Gating gating{.function = Nonlinearity::kGeluQuick, .limit = 0.75f, .up_offset = 1.0f};
  const Scene on_cpu(cpu_.get(), DType::kF32, true), on_gpu(nullptr, DType::kF32, true);
  const reference::OwnedMatrix h = reference::upload(*cpu_, x, kHidden), weights = reference::upload(*cpu_, routing, kExperts);
  const reference::OwnedMatrix expected = reference::make_matrix(*cpu_, Activation::kFloat32, 2 * kTokens, kHidden);
  cpu_->experts(h.matrix, kTokens, weights.matrix, on_cpu.experts(gate_up.data(), down.data()), gating, on_cpu.leaves, expected.matrix);
  const DeviceRows in = upload_rows(x, kHidden), by = upload_rows(routing, kExperts);
  const DeviceRows out = make_rows(Activation::kFloat32, 2 * kTokens, kHidden);
  ExpertSums sums;
  sums.run(stream_.launch(), in.rows, kTokens, by.rows, on_gpu.experts(gate_up_there.as<float>(), down_there.as<float>()), gating,
           on_gpu.leaves, out.rows);
  stream_.synchronize();
  EXPECT_EQ(count_different(out.values(), reference::download(*cpu_, expected.matrix, 2 * kTokens)), 0u);
}

TEST_F(CudaExperts, In16BitsATokenDependsOnNoOther) {
  const std::vector<float> x = random_floats(kTokens * kHidden, 4), routing = some_routing();
  const Scene scene(nullptr, DType::kBF16, false);
  const auto run = [&](std::size_t first) {
    const std::vector<float> some(x.begin() + static_cast<std::ptrdiff_t>(first * kHidden), x.end());
    const std::vector<float> by(routing.begin() + static_cast<std::ptrdiff_t>(first * kExperts), routing.end());
    const std::size_t tokens = kTokens - first;
    const DeviceRows floats = upload_rows(some, kHidden), weights = upload_rows(by, kExperts);
    const DeviceRows in = make_rows(Activation::kBFloat16, tokens, kHidden), out = make_rows(Activation::kFloat32, tokens, kHidden);
    convert(stream_.launch(), floats.rows, tokens, in.rows);
    ExpertSums sums;
    sums.run(stream_.launch(), in.rows, tokens, weights.rows, scene.experts(), {Nonlinearity::kSilu}, scene.leaves, out.rows);
    stream_.synchronize();
    return out.values();
  };
  const std::vector<float> all = run(0), last = run(3);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.begin() + 3 * kHidden));
}

}  // namespace
}  // namespace lockstep::device::cuda
