// Ops that change a matrix in place, and mixtures of experts.

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "device/cpu/kernels.h"
#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

float sum_of_squares(const float* x, std::size_t n) {
  float lanes[16] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

/// A batch of one sequence whose tokens stand at these positions, one behind the other.
StepBatch batch_at(std::int32_t first, std::size_t count) {
  StepBatch batch;
  for (std::size_t t = 0; t < count; ++t) {
    batch.token_ids.push_back(0);
    batch.positions.push_back(first + static_cast<std::int32_t>(t));
  }
  return batch;
}

TEST(Scale, MultipliesEveryElement) {
  const std::vector<float> x = random_floats(5 * 37, 1);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix matrix = upload(*device, x, 37);
    device->scale(matrix.matrix, 5, 0.4f);
    std::vector<float> expected = x;
    for (float& value : expected) value = value * 0.4f;
    EXPECT_EQ(download(*device, matrix.matrix, 5), expected);
  }
}

TEST(SoftCap, IsNearTheFormulaAndTheSameOnEveryInstructionSet) {
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(static_cast<float>(i) * 0.05f);
  for (const float special : {0.0f, -0.0f, 1e-20f, -1e-20f, 1e-3f, 3e38f, -3e38f, INFINITY, -INFINITY}) x.push_back(special);
  const float cap = 15.0f;
  std::vector<float> expected;
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix matrix = upload(*device, x, x.size());
    device->soft_cap(matrix.matrix, 1, cap);
    const std::vector<float> found = download(*device, matrix.matrix, 1);
    if (expected.empty()) expected = found;
    EXPECT_EQ(count_different(found, expected), 0u) << device->description();
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = double{cap} * std::tanh(double{x[i]} / double{cap});
    EXPECT_NEAR(expected[i], exact, 5e-7 * std::fabs(exact)) << x[i];
    EXPECT_EQ(std::signbit(expected[i]), std::signbit(x[i]));
  }
}

TEST(SoftCap, KeepsNotANumber) {
  const auto device = make_cpu_device({1});
  const OwnedMatrix matrix = upload(*device, {std::nanf(""), 1.0f}, 2);
  device->soft_cap(matrix.matrix, 1, 5.0f);
  const std::vector<float> found = download(*device, matrix.matrix, 1);
  EXPECT_TRUE(std::isnan(found[0]));
  EXPECT_FALSE(std::isnan(found[1]));
}

TEST(GateRows, ScalesEachRowByTheSigmoidOfItsGate) {
  const std::vector<float> x = random_floats(4 * 20, 1), gates = {0.0f, 3.0f, -3.0f, 100.0f};
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix matrix = upload(*device, x, 20), by = upload(*device, gates, 1);
    device->gate_rows(matrix.matrix, 4, by.matrix);
    const std::vector<float> found = download(*device, matrix.matrix, 4);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = double{x[i]} / (1.0 + std::exp(-double{gates[i / 20]}));
      EXPECT_NEAR(found[i], exact, 3e-7 * std::fabs(exact));
    }
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(found[i], x[i] * 0.5f);
  }
}

TEST(AddPositions, AddsTheRowsOfThePositionsFromAnOffsetOn) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    const StoredWeight table = make_weight(dtype, 12, 64, {{64, 0, true}}, 3);
    const std::vector<float> x = random_floats(3 * 64, 2);
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      const auto weight = device->load_weight(table.spec, table.reader());
      const OwnedMatrix matrix = upload(*device, x, 64);
      const StepBatch batch = batch_at(4, 3);
      device->begin_step(batch);
      device->add_positions(*weight, 2, matrix.matrix);
      std::vector<float> expected = x, row(64);
      for (std::size_t t = 0; t < 3; ++t) {
        dequantise(dtype, std::span(table.row(6 + t), table.row_size()), row);
        for (std::size_t i = 0; i < 64; ++i) expected[t * 64 + i] = expected[t * 64 + i] + row[i];
      }
      EXPECT_EQ(count_different(download(*device, matrix.matrix, 3), expected), 0u) << device->description();
    }
  }
}

TEST(AddPositions, RefusesAPositionBehindTheTable) {
  const StoredWeight table = make_weight(DType::kF32, 12, 16, {{16, 0, true}}, 3);
  const auto device = make_cpu_device({1});
  const auto weight = device->load_weight(table.spec, table.reader());
  const OwnedMatrix matrix = make_matrix(*device, Activation::kFloat32, 2, 16);
  const StepBatch batch = batch_at(9, 2);
  device->begin_step(batch);
  EXPECT_THROW(device->add_positions(*weight, 2, matrix.matrix), std::out_of_range);
}

TEST(NormHeads, NormsEachHeadByItselfAndTouchesNoOtherColumn) {
  const std::size_t dim = 24, columns = 5 * dim;
  const std::vector<float> x = random_floats(3 * columns, 1, 2.0f), weight = random_floats(dim, 2);
  std::vector<float> expected = x;
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t head = 1; head < 4; ++head) {
      float* at = &expected[t * columns + head * dim];
      const float inverse = 1.0f / std::sqrt(sum_of_squares(at, dim) / static_cast<float>(dim) + 1e-6f);
      for (std::size_t i = 0; i < dim; ++i) at[i] = (at[i] * inverse) * weight[i];
    }
  }
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix matrix = upload(*device, x, columns);
    device->norm_heads(matrix.matrix, 3, dim, 3, dim, Norm::rms(weight.data(), 1e-6f));
    EXPECT_EQ(count_different(download(*device, matrix.matrix, 3), expected), 0u) << device->description();
  }
}

TEST(NormBySquare, WithTheSumsOfAllHeadsIsTheNormOfTheirColumns) {
  const std::size_t dim = 16, heads = 3, columns = (heads + 1) * dim;
  const std::vector<float> x = random_floats(4 * columns, 1, 2.0f), weight = random_floats(heads * dim, 2);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix matrix = upload(*device, x, columns), squares = make_matrix(*device, Activation::kFloat32, heads * 4, 1);
    device->square_heads(matrix.matrix, 4, dim, heads, dim, squares.matrix);
    const std::vector<float> sums = download(*device, squares.matrix, heads * 4);
    std::vector<float> totals, expected = x;
    for (std::size_t t = 0; t < 4; ++t) {
      for (std::size_t head = 0; head < heads; ++head)
        EXPECT_EQ(sums[head * 4 + t], sum_of_squares(&x[t * columns + (1 + head) * dim], dim));
      totals.push_back((sums[t] + sums[4 + t]) + sums[8 + t]);
      const float inverse = 1.0f / std::sqrt(totals[t] / static_cast<float>(heads * dim) + 1e-6f);
      for (std::size_t i = 0; i < heads * dim; ++i)
        expected[t * columns + dim + i] = (expected[t * columns + dim + i] * inverse) * weight[i];
    }
    const OwnedMatrix total = upload(*device, totals, 1);
    device->norm_by_square(matrix.matrix, 4, dim, heads * dim, total.matrix, heads * dim, weight.data(), 1e-6f);
    EXPECT_EQ(count_different(download(*device, matrix.matrix, 4), expected), 0u) << device->description();
  }
}

std::vector<float> routed(Device& device, const std::vector<float>& logits, std::size_t experts, const Routing& routing) {
  const OwnedMatrix in = upload(device, logits, experts);
  const OwnedMatrix out = make_matrix(device, Activation::kFloat32, logits.size() / experts, experts);
  device.route(in.matrix, logits.size() / experts, routing, out.matrix);
  return download(device, out.matrix, logits.size() / experts);
}

TEST(Route, ChoosesTheLargestAndWeighsThemBySoftmax) {
  const auto device = make_cpu_device({1});
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  double all = 0;
  for (const float logit : logits) all += std::exp(double{logit});
  const std::vector<float> over_all = routed(*device, logits, 5, {.per_token = 2, .renormalised = false});
  const std::vector<float> over_chosen = routed(*device, logits, 5, {.per_token = 2, .renormalised = true});
  for (const std::size_t e : {1, 3}) {
    EXPECT_NEAR(over_all[e], std::exp(3.0) / all, 1e-6);
    EXPECT_EQ(over_chosen[e], 0.5f);
  }
  for (const std::size_t e : {0, 2, 4}) EXPECT_EQ(over_all[e], 0.0f);
  const std::vector<float> three = routed(*device, logits, 5, {.per_token = 3, .renormalised = true});
  EXPECT_NEAR(three[1] + three[2] + three[3], 1.0, 1e-6);
  EXPECT_EQ(routed(*device, {2.0f, 2.0f, 2.0f}, 3, {.per_token = 1, .renormalised = true}), (std::vector<float>{1.0f, 0.0f, 0.0f}))
      << "ties go to the lower id";
}

TEST(Route, OfLogitsThatAreNotFiniteShowsTheFault) {
  const auto device = make_cpu_device({1});
  for (const float weight : routed(*device, {1.0f, std::nanf(""), 2.0f}, 3, {.per_token = 2, .renormalised = true}))
    EXPECT_TRUE(std::isnan(weight));
}

/// Experts of one rank: `count` of them, in this type.
struct ExpertScene {
  std::size_t hidden = 64, inner = 96, count = 4;
  DType dtype;
  std::vector<Leaf> leaves;  // of the inner columns, as a program
  std::vector<StoredWeight> gate_up, down;
  std::vector<std::vector<float>> gate_up_biases, down_biases;  // of each expert, or empty
  Gating gating = {};

  ExpertScene(DType type, std::size_t num_leaves) : dtype(type), leaves(make_leaves(type, 96, num_leaves)) {
    std::vector<Leaf> apart = leaves;
    for (Leaf& leaf : apart) leaf = {leaf.end, 0, true};
    for (std::size_t e = 0; e < count; ++e) {
      const auto seed = static_cast<std::uint32_t>(10 + e);
      gate_up.push_back(make_weight(type, 2 * inner, hidden, {{static_cast<std::uint32_t>(hidden), 0, true}}, seed));
      down.push_back(make_weight(type, hidden, inner, apart, 100 + seed));
    }
  }

  std::vector<float> run(Device& device, const std::vector<float>& x, const std::vector<float>& routing) const {
    const std::size_t tokens = x.size() / hidden;
    std::vector<std::unique_ptr<Weight>> owned;
    std::vector<Expert> experts;
    for (std::size_t e = 0; e < count; ++e) {
      owned.push_back(device.load_weight(gate_up[e].spec, gate_up[e].reader()));
      owned.push_back(device.load_weight(down[e].spec, down[e].reader()));
      experts.push_back({owned[2 * e].get(), owned[2 * e + 1].get()});
      if (gate_up_biases.empty()) continue;
      experts.back().gate_up_bias = gate_up_biases[e].data();
      experts.back().down_bias = down_biases[e].data();
    }
    const OwnedMatrix in = upload(device, x, hidden, device.activation_for(dtype)), weights = upload(device, routing, count);
    const OwnedMatrix out = make_matrix(device, Activation::kFloat32, tokens, hidden);
    device.experts(in.matrix, tokens, weights.matrix, count, experts, gating, leaves, out.matrix);
    return download(device, out.matrix, tokens);
  }

  /// By the definition, from the products of one token at a time.
  std::vector<float> expected(Device& device, const std::vector<float>& x, const std::vector<float>& routing) const {
    std::vector<float> all;
    for (std::size_t t = 0; t < x.size() / hidden; ++t) {
      std::vector<std::vector<float>> sums(leaves.size(), std::vector<float>(hidden, 0.0f));
      for (std::size_t e = 0; e < count; ++e) {
        const float weight = routing[t * count + e];
        if (weight == 0.0f) continue;
        const std::vector<float> token(x.begin() + static_cast<std::ptrdiff_t>(t * hidden),
                                       x.begin() + static_cast<std::ptrdiff_t>((t + 1) * hidden));
        const OwnedMatrix products =
            upload(device, reference::linear(gate_up[e], token, 1, gate_up_biases.empty() ? nullptr : gate_up_biases[e].data()), 2 * inner);
        const OwnedMatrix activated = make_matrix(device, Activation::kFloat32, 1, inner);
        device.gated(gating, products.matrix, 1, activated.matrix);
        std::vector<float> partial = reference::linear(down[e], download(device, activated.matrix, 1), 1, nullptr);
        for (std::size_t i = 0; i < hidden && !down_biases.empty(); ++i) partial[i] = partial[i] + down_biases[e][i];  // the first leaf
        for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
          for (std::size_t i = 0; i < hidden; ++i) sums[leaf][i] = std::fma(weight, partial[leaf * hidden + i], sums[leaf][i]);
        }
      }
      std::vector<std::vector<float>> open;
      for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
        open.push_back(sums[leaf]);
        for (std::uint32_t merge = 0; merge < leaves[leaf].merges; ++merge) {
          const std::vector<float> above = open.back();
          open.pop_back();
          for (std::size_t i = 0; i < hidden; ++i) open.back()[i] = open.back()[i] + above[i];
        }
      }
      all.insert(all.end(), open.front().begin(), open.front().end());
    }
    return all;
  }
};

class Experts : public testing::TestWithParam<bool> {};

TEST_P(Experts, GiveTheBitsOfTheDefinitionForEveryTypeInstructionSetAndBatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4}) {
    ExpertScene scene(dtype, 3);
    for (std::uint32_t e = 0; GetParam() && e < scene.count; ++e) {
      scene.gate_up_biases.push_back(random_floats(2 * scene.inner, 200 + e));
      scene.down_biases.push_back(random_floats(scene.hidden, 300 + e));
      scene.gating = {.function = Nonlinearity::kGeluQuick, .limit = 0.75f, .up_offset = 1.0f};
    }
    const std::size_t tokens = 9;
    const std::vector<float> x = random_floats(tokens * scene.hidden, 4);
    std::vector<float> routing = random_floats(tokens * scene.count, 5);
    for (std::size_t i = 0; i < routing.size(); ++i) routing[i] = i % 3 == 0 ? 0.0f : std::fabs(routing[i]);
    for (std::size_t e = 0; e < scene.count; ++e) routing[2 * scene.count + e] = e == 3 ? 0.0f : routing[2 * scene.count + e];
    const auto plain = make_cpu_device({1, Isa::kPortable});
    const std::vector<float> expected = scene.expected(*plain, x, routing);
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      EXPECT_EQ(count_different(scene.run(*device, x, routing), expected), 0u) << device->description() << " " << info(dtype).name;
    }
    const std::vector<float> alone = scene.run(*plain, {x.end() - static_cast<std::ptrdiff_t>(scene.hidden), x.end()},
                                               {routing.end() - static_cast<std::ptrdiff_t>(scene.count), routing.end()});
    EXPECT_EQ(count_different(alone, {expected.end() - static_cast<std::ptrdiff_t>(scene.hidden), expected.end()}), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutBiases, Experts, testing::Bool());

TEST(ExpertsOfNoToken, ATokenWithoutExpertsGetsZeros) {
  const ExpertScene scene(DType::kF32, 2);
  const auto device = make_cpu_device({1});
  const std::vector<float> found = scene.run(*device, random_floats(scene.hidden, 4), std::vector<float>(scene.count, 0.0f));
  EXPECT_EQ(found, std::vector<float>(scene.hidden, 0.0f));
}

}  // namespace
}  // namespace lockstep::device
