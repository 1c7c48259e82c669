// Mixtures of experts on emulated GPUs: in fp32 the bits of the CPU device, in 16 bits those of one product after the other. What is not
// chosen is not read, and a step is the same launches whatever is chosen.

#include "device/cuda/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/rows.h"
#include "simt/simt.h"
#include "tests/simt/device_rows.h"
#include "tests/simt/recording.h"

namespace lockstep::device::cuda {
namespace {

using reference::count_different;
using reference::make_weight;
using reference::random_floats;
using reference::StoredWeight;

constexpr std::size_t kExperts = 4, kPerToken = 2, kInner = 96, kNeverChosen = 1;

class CudaExperts : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  void TearDown() override { EXPECT_EQ(simt::last_error(), ""); }
  std::unique_ptr<Device> cpu_ = make_cpu_device({1});
  TestStream stream_;
};

TEST_F(CudaExperts, RoutesAsTheCpuDoes) {
  constexpr std::size_t kTokens = 5;
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

/// The experts of a layer on one device, with a product for each leaf of the inner columns.
struct Scene {
  std::size_t hidden;
  std::vector<Leaf> leaves;
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<Expert> experts;
  Gating gating = {};

  /// @param cpu  the device; null: an emulated GPU
  Scene(Device* cpu, DType dtype, std::size_t num_experts = kExperts, bool two_roots = false)
      : hidden(info(dtype).block_quantised() ? 64 : 48), leaves(reference::make_leaves(dtype, kInner, 3)) {
    if (two_roots) {  // leaf 0 and 1 to the first, leaf 2 to the second
      for (Leaf& leaf : leaves) leaf.merges = 0;
      leaves[1] = {leaves[1].end, 1, true};
      leaves[2].ends_root = true;
    }
    std::vector<Leaf> apart = leaves;
    for (Leaf& leaf : apart) leaf = {leaf.end, 0, true};
    for (std::uint32_t e = 0; e < num_experts; ++e) {
      for (const StoredWeight& each : {make_weight(dtype, 2 * kInner, hidden, {{static_cast<std::uint32_t>(hidden), 0, true}}, 100 + e),
                                       make_weight(dtype, hidden, kInner, apart, 300 + e)}) {
        weights.push_back(cpu != nullptr ? cpu->load_weight(each.spec, each.reader())
                                         : std::unique_ptr<Weight>(load_cuda_weight(each.spec, each.reader())));
      }
      experts.push_back({weights[2 * e].get(), weights[2 * e + 1].get()});
    }
  }
  /// Biases of `gate_up`, [experts, 2 * inner], and of `down`, [experts, hidden], where the device has its memory.
  void set_biases(const float* gate_up, const float* down) {
    for (std::size_t e = 0; e < experts.size(); ++e) {
      experts[e].gate_up_bias = gate_up + e * 2 * kInner;
      experts[e].down_bias = down + e * hidden;
    }
  }
  Mixture mixture(std::size_t per_token = kPerToken) const { return {experts, per_token, gating, leaves}; }
  std::size_t num_roots() const {
    return static_cast<std::size_t>(std::ranges::count_if(leaves, [](const Leaf& leaf) { return leaf.ends_root; }));
  }
  const CudaWeight& gate_up(std::size_t e) const { return static_cast<const CudaWeight&>(*weights[2 * e]); }
  const CudaWeight& down(std::size_t e) const { return static_cast<const CudaWeight&>(*weights[2 * e + 1]); }
};

/// [tokens, experts]: two weights each, none of them for kNeverChosen.
std::vector<float> some_routing(std::size_t tokens, std::uint32_t seed = 5, std::size_t experts = kExperts) {
  std::vector<float> routing(tokens * experts, 0.0f);
  const std::vector<float> random = random_floats(2 * tokens, seed);
  for (std::size_t t = 0; t < tokens; ++t) {
    std::vector<std::size_t> others;
    for (std::size_t e = 0; e < experts; ++e) {
      if (e != kNeverChosen) others.push_back(e);
    }
    const std::size_t first = (t * seed + t / 3) % others.size();
    routing[t * experts + others[first]] = 0.1f + std::fabs(random[2 * t]);
    routing[t * experts + others[(first + 1 + t % 2) % others.size()]] = 0.1f + std::fabs(random[2 * t + 1]);
  }
  return routing;
}

/// The same, all tokens with one expert; and with a token that is not a number and one that chooses none.
std::vector<std::vector<float>> routings(std::size_t tokens) {
  std::vector<float> one(tokens * kExperts, 0.0f), odd = some_routing(tokens);
  for (std::size_t t = 0; t < tokens; ++t) one[t * kExperts + 2] = 0.5f + static_cast<float>(t);
  std::fill_n(odd.begin(), kExperts, std::numeric_limits<float>::quiet_NaN());
  std::fill(odd.end() - kExperts, odd.end(), 0.0f);
  return {some_routing(tokens), one, odd};
}

std::vector<float> on_cpu(Device& cpu, const Scene& scene, const std::vector<float>& x, const std::vector<float>& routing) {
  const std::size_t tokens = x.size() / scene.hidden;
  const reference::OwnedMatrix h = reference::upload(cpu, x, scene.hidden), weights = reference::upload(cpu, routing, kExperts);
  const reference::OwnedMatrix out = reference::make_matrix(cpu, Activation::kFloat32, scene.num_roots() * tokens, scene.hidden);
  cpu.experts(h.matrix, tokens, weights.matrix, kPerToken, scene.experts, scene.gating, scene.leaves, out.matrix);
  return reference::download(cpu, out.matrix, scene.num_roots() * tokens);
}

DeviceRows activations(const TestStream& stream, const Scene& scene, const std::vector<float>& x) {
  const std::size_t tokens = x.size() / scene.hidden;
  const DeviceRows floats = upload_rows(x, scene.hidden);
  DeviceRows in = make_rows(activation_for(scene.gate_up(0).spec().dtype), tokens, scene.hidden);
  convert(stream.launch(), floats.rows, tokens, in.rows);
  stream.synchronize();
  return in;
}

std::vector<float> on_gpu(const TestStream& stream, const Scene& scene, const std::vector<float>& x, const std::vector<float>& routing,
                          ExpertSums sums = ExpertSums(128), const std::vector<std::int32_t>& token_ids = {}) {
  const std::size_t tokens = x.size() / scene.hidden, experts = scene.experts.size();
  const DeviceRows in = activations(stream, scene, x), by = upload_rows(routing, experts);
  const DeviceRows out = make_rows(Activation::kFloat32, scene.num_roots() * tokens, scene.hidden);
  const DeviceMemory ids = to_device(token_ids);
  sums.run(stream.launch(), in.rows, tokens, by.rows, ids.as<std::int32_t>(), scene.mixture(), out.rows);
  stream.synchronize();
  return out.values();
}

constexpr std::size_t kTokenCounts[] = {1, 2, 12, 17, 33, 70};  // every size of tiles

TEST_F(CudaExperts, InFloat32HaveTheBitsOfTheCpuDevice) {
  for (const bool two_roots : {false, true}) {
    const Scene cpu(cpu_.get(), DType::kF32, kExperts, two_roots), gpu(nullptr, DType::kF32, kExperts, two_roots);
    for (const std::size_t tokens : kTokenCounts) {
      const std::vector<float> x = random_floats(tokens * cpu.hidden, 4);
      for (const std::vector<float>& routing : routings(tokens))
        EXPECT_EQ(count_different(on_gpu(stream_, gpu, x, routing), on_cpu(*cpu_, cpu, x, routing)), 0u) << tokens << " tokens";
    }
  }
}

TEST_F(CudaExperts, DoNotDependOnTheScheduleOfThreads) {
  const Scene cpu(cpu_.get(), DType::kF32), gpu(nullptr, DType::kF32);
  const std::vector<float> x = random_floats(33 * cpu.hidden, 4);
  for (const std::vector<float>& routing : routings(33)) {
    const std::vector<float> expected = on_cpu(*cpu_, cpu, x, routing);
    for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      simt::config().schedule = schedule;
      simt::config().shuffle_blocks = true;
      EXPECT_EQ(count_different(on_gpu(stream_, gpu, x, routing), expected), 0u);
    }
  }
}

TEST_F(CudaExperts, WithBiasesAndLimitsInFloat32HaveTheBitsOfTheCpuDevice) {
  Scene cpu(cpu_.get(), DType::kF32, kExperts, true), gpu(nullptr, DType::kF32, kExperts, true);
  const std::vector<float> gate_up = random_floats(kExperts * 2 * kInner, 6), down = random_floats(kExperts * cpu.hidden, 7);
  const DeviceMemory gate_up_there = to_device(gate_up), down_there = to_device(down);
  cpu.set_biases(gate_up.data(), down.data());
  gpu.set_biases(gate_up_there.as<float>(), down_there.as<float>());
  cpu.gating = gpu.gating = {.function = Nonlinearity::kGeluQuick, .limit = 0.75f, .up_offset = 1.0f};
  for (const std::size_t tokens : {5, 33}) {
    const std::vector<float> x = random_floats(tokens * cpu.hidden, 4);
    for (const std::vector<float>& routing : routings(tokens))
      EXPECT_EQ(count_different(on_gpu(stream_, gpu, x, routing), on_cpu(*cpu_, cpu, x, routing)), 0u) << tokens << " tokens";
  }
}

/// By the definition: every expert's products of all tokens, one launch after the other.
std::vector<float> by_products(const TestStream& stream, const Scene& scene, const std::vector<float>& x,
                               const std::vector<float>& routing) {
  const std::size_t tokens = x.size() / scene.hidden, leaves = scene.leaves.size();
  const DeviceRows in = activations(stream, scene, x);
  std::vector<float> sums(leaves * tokens * scene.hidden, 0.0f);
  for (std::size_t e = 0; e < kExperts; ++e) {
    const DeviceRows products = make_rows(Activation::kFloat32, tokens, 2 * kInner);
    const DeviceRows inner = make_rows(in.rows.type, tokens, kInner);
    const DeviceRows partial = make_rows(Activation::kFloat32, leaves * tokens, scene.hidden);
    linear(stream.launch(), in.rows, tokens, scene.gate_up(e), nullptr, products.rows, 0);
    gated(stream.launch(), scene.gating, products.rows, tokens, inner.rows);
    linear(stream.launch(), inner.rows, tokens, scene.down(e), nullptr, partial.rows, 0);
    stream.synchronize();
    const std::vector<float> values = partial.values();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float weight = routing[i / scene.hidden % tokens * kExperts + e];
      if (weight != 0.0f) sums[i] = std::fma(weight, values[i], sums[i]);
    }
  }
  std::vector<float> out(tokens * scene.hidden);  // three leaves to one root: (0 + 1) + 2
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (sums[i] + sums[out.size() + i]) + sums[2 * out.size() + i];
  return out;
}

class CudaExpertsOf : public CudaExperts, public testing::WithParamInterface<DType> {};

TEST_P(CudaExpertsOf, EveryTypeHaveTheBitsOfTheirProducts) {
  for (const int multiprocessors : {1, 100000}) {  // the large tiles, the small ones
    const TestStream stream(multiprocessors);
    const Scene scene(nullptr, GetParam());
    for (const std::size_t tokens : kTokenCounts) {
      const std::vector<float> x = random_floats(tokens * scene.hidden, 4);
      for (const std::vector<float>& routing : routings(tokens))
        EXPECT_EQ(count_different(on_gpu(stream, scene, x, routing), by_products(stream, scene, x, routing)), 0u) << tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaExpertsOf,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

TEST_F(CudaExperts, OfMoreTokensThanMemoryIsTakenForGoTogetherInPieces) {
  const Scene cpu(cpu_.get(), DType::kF32, kExperts, true), gpu(nullptr, DType::kF32, kExperts, true);
  const std::vector<float> x = random_floats(33 * cpu.hidden, 4), routing = some_routing(33);
  const std::size_t bytes_of_token = gpu.leaves.size() * kPerToken * gpu.hidden * sizeof(float);
  EXPECT_EQ(count_different(on_gpu(stream_, gpu, x, routing, ExpertSums(33, 10 * bytes_of_token)), on_cpu(*cpu_, cpu, x, routing)), 0u);
  std::uint64_t pieces = 0;
  for (const auto& [name, runs] : simt::counters().kernels) pieces += name.find("sum_expert_rows") != std::string::npos ? runs : 0;
  EXPECT_EQ(pieces, 4u);
}

TEST_F(CudaExperts, TakeTheMemoryThatTheySay) {
  const auto free = [] {
    std::size_t bytes = 0, total = 0;
    check(cudaMemGetInfo(&bytes, &total), "asking for free memory");
    return bytes;
  };
  const Scene floats(nullptr, DType::kF32, kExperts, true), halves(nullptr, DType::kBF16);
  for (const Scene* scene : {&floats, &halves}) {
    const DeviceRows in = activations(stream_, *scene, random_floats(scene->hidden, 4)), by = upload_rows(some_routing(1), kExperts);
    const DeviceRows out = make_rows(Activation::kFloat32, scene->num_roots(), scene->hidden);
    for (const std::size_t max_bytes : {std::size_t{1} << 20, std::size_t{1} << 12}) {
      ExpertSums sums(100, max_bytes);
      const std::size_t before = free(), addresses = kExperts * 5 * sizeof(void*);
      sums.run(stream_.launch(), in.rows, 1, by.rows, nullptr, scene->mixture(), out.rows);
      stream_.synchronize();
      EXPECT_EQ(before - free() - addresses, sums.memory_bytes(kPerToken, scene->gate_up(0).spec(), scene->down(0).spec())) << max_bytes;
    }
  }
}

TEST_F(CudaExperts, AreNotComputedForPads) {
  const Scene gpu(nullptr, DType::kF32);
  const std::vector<float> x = random_floats(8 * gpu.hidden, 4), routing = some_routing(8);
  std::vector<float> expected = on_gpu(stream_, gpu, x, routing);
  std::fill(expected.begin() + static_cast<std::ptrdiff_t>(6 * gpu.hidden), expected.end(), 0.0f);
  EXPECT_EQ(count_different(on_gpu(stream_, gpu, x, routing, ExpertSums(8), {7, 0, 9, 1, 2, 3, -1, -1}), expected), 0u);
}

/// Pages that nobody may touch for as long as this lives. Those that `memory` shares with others stay as they are.
class Forbidden {
 public:
  Forbidden(const void* memory, std::size_t bytes) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<std::uintptr_t>(memory);
    begin_ = reinterpret_cast<void*>((at + page - 1) / page * page);
    bytes_ = (at + bytes) / page * page - reinterpret_cast<std::uintptr_t>(begin_);
    EXPECT_GE(bytes_, page);
    EXPECT_EQ(mprotect(begin_, bytes_, PROT_NONE), 0);
  }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  ~Forbidden() { mprotect(begin_, bytes_, PROT_READ | PROT_WRITE); }

 private:
  void* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A read of it would end the program. Expert 0 is one of them: tiles that nobody needs must not read its weights either.
TEST_F(CudaExperts, ThatNoTokenChoseAreNotRead) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Scene scene(nullptr, dtype);
    for (const std::size_t tokens : {1, 5, 70}) {
      const std::vector<float> x = random_floats(tokens * scene.hidden, 4);
      std::vector<float> routing(tokens * kExperts, 0.0f);
      for (std::size_t t = 0; t < tokens; ++t) routing[t * kExperts + 2] = 1.0f, routing[t * kExperts + 3] = t % 2 == 0 ? 0.5f : 0.0f;
      const std::vector<float> expected = by_products(stream_, scene, x, routing);
      std::vector<std::unique_ptr<Forbidden>> forbidden;
      for (const std::size_t e : {0, 1}) {
        forbidden.push_back(std::make_unique<Forbidden>(scene.gate_up(e).data(), scene.gate_up(e).size_bytes()));
        forbidden.push_back(std::make_unique<Forbidden>(scene.down(e).data(), scene.down(e).size_bytes()));
      }
      EXPECT_EQ(count_different(on_gpu(stream_, scene, x, routing), expected), 0u) << tokens << " tokens";
    }
  }
}

TEST_F(CudaExperts, AreFiveLaunchesHoweverManyThereAre) {
  for (const std::size_t experts : {4, 70, 160}) {
    const Scene scene(nullptr, DType::kBF16, experts);
    const std::vector<float> x = random_floats(3 * scene.hidden, 4), routing = some_routing(3, 5, experts);
    const DeviceRows in = activations(stream_, scene, x), by = upload_rows(routing, experts);
    const DeviceRows out = make_rows(Activation::kFloat32, 3, scene.hidden);
    ExpertSums sums(3);
    for (const std::uint64_t copies : {1, 0}) {  // of the addresses of the weights, the first time
      const simt::Counters before = simt::counters();
      sums.run(stream_.launch(), in.rows, 3, by.rows, nullptr, scene.mixture(), out.rows);
      stream_.synchronize();
      EXPECT_EQ(simt::counters().launches - before.launches, 5u) << experts;
      EXPECT_EQ(simt::counters().host_to_device - before.host_to_device, copies) << experts;
    }
    std::vector<Expert> exchanged = scene.experts;
    std::swap(exchanged[1], exchanged.back());
    const simt::Counters before = simt::counters();
    sums.run(stream_.launch(), in.rows, 3, by.rows, nullptr, {exchanged, kPerToken, {}, scene.leaves}, out.rows);
    stream_.synchronize();
    EXPECT_EQ(simt::counters().host_to_device - before.host_to_device, 1u) << "other weights, behind the same first one";
  }
}

TEST_F(CudaExperts, OfARecordedStepFollowTheRoutingOfEachReplay) {
  const Scene cpu(cpu_.get(), DType::kF32), gpu(nullptr, DType::kF32);
  constexpr std::size_t kTokens = 8;
  const std::vector<float> x = random_floats(kTokens * cpu.hidden, 4);
  const DeviceRows in = upload_rows(x, cpu.hidden), by = upload_rows(some_routing(kTokens), kExperts);
  const DeviceRows out = make_rows(Activation::kFloat32, kTokens, cpu.hidden);
  ExpertSums sums(64);
  const auto run = [&] { sums.run(stream_.launch(), in.rows, kTokens, by.rows, nullptr, gpu.mixture(), out.rows); };
  run();  // the addresses of the weights are uploaded
  const comm::Recording recording(stream_.launch().stream, run);
  const auto other_step = [&](std::size_t tokens) {
    const DeviceRows other = upload_rows(random_floats(tokens * cpu.hidden, 8), cpu.hidden),
                     weights = upload_rows(some_routing(tokens), kExperts);
    const DeviceRows sum = make_rows(Activation::kFloat32, tokens, cpu.hidden);
    sums.run(stream_.launch(), other.rows, tokens, weights.rows, nullptr, gpu.mixture(), sum.rows);
    stream_.synchronize();
  };
  for (const std::vector<float>& routing : routings(kTokens)) {
    other_step(64);  // memory stays where it is
    other_step(2);   // its tiles are of no interest
    check(cudaMemcpy(by.rows.data, routing.data(), routing.size() * sizeof(float), cudaMemcpyHostToDevice), "writing the routing");
    recording.replay(stream_.launch().stream);
    stream_.synchronize();
    EXPECT_EQ(count_different(out.values(), on_cpu(*cpu_, cpu, x, routing)), 0u);
  }
}

TEST_F(CudaExperts, ThatDoNotFitAreRefused) {
  const Scene floats(nullptr, DType::kF32), halves(nullptr, DType::kF16);
  const auto message_of = [&](const Mixture& mixture, std::size_t tokens) -> std::string {
    const DeviceRows in = make_rows(Activation::kFloat32, tokens, floats.hidden);
    const DeviceRows by = make_rows(Activation::kFloat32, tokens, mixture.experts.size());
    const DeviceRows out = make_rows(Activation::kFloat32, tokens, floats.hidden);
    try {
      ExpertSums sums(8);
      sums.run(stream_.launch(), in.rows, tokens, by.rows, nullptr, mixture, out.rows);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of(floats.mixture(), 9), "experts: 9 tokens are more than the 8 of a step");
  std::vector<Expert> many(1025, floats.experts.front());
  EXPECT_EQ(message_of({many, kPerToken, {}, floats.leaves}, 1), "the CUDA device takes at most 1024 experts in a layer, not 1025");
  std::vector<Expert> mixed{floats.experts[0], halves.experts[1]};
  EXPECT_EQ(message_of({mixed, kPerToken, {}, floats.leaves}, 1),
            "'test.F16' and 'test.F32': the experts of a layer must have the same shapes, types and leaves");
  const StoredWeight stored = make_weight(DType::kF32, floats.hidden, kInner, {{16, 0, true}, {32, 0, true}, {kInner, 0, true}}, 301);
  const std::unique_ptr<Weight> cut_elsewhere(load_cuda_weight(stored.spec, stored.reader()));
  ASSERT_EQ(cut_elsewhere->spec().leaves.size(), floats.down(0).spec().leaves.size());
  std::vector<Expert> other_leaves{floats.experts[0], {floats.experts[1].gate_up, cut_elsewhere.get()}};
  EXPECT_EQ(message_of({other_leaves, kPerToken, {}, floats.leaves}, 1),
            "'test.F32' and 'test.F32': the experts of a layer must have the same shapes, types and leaves");
}

}  // namespace
}  // namespace lockstep::device::cuda
