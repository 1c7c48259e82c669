// The exact family: on a GPU the same bits as on the CPU.
#include <gtest/gtest.h>

#include "parallel/reduction_tree.h"
#include "tests/simt/linear_support.h"

namespace lockstep::device::cuda {
namespace {

using namespace testing_support;

std::vector<float> run_on_cpu(const StoredWeight& w, const std::vector<float>& x, std::size_t tokens, const std::vector<float>& bias) {
  const auto device = make_cpu_device({.num_threads = 1});
  const auto weight = device->load_weight(w.spec, w.reader());
  const reference::OwnedMatrix in = reference::upload(*device, x, w.spec.columns);
  const std::size_t rows = w.spec.num_roots() * tokens;
  const reference::OwnedMatrix out = reference::make_matrix(*device, Activation::kFloat32, rows, w.spec.rows);
  device->linear(in.matrix, tokens, *weight, bias.empty() ? nullptr : bias.data(), out.matrix);
  return reference::download(*device, out.matrix, rows);
}

class ExactLinearTest : public testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
};

TEST_F(ExactLinearTest, HasTheBitsOfTheCpuForEveryShapeAndNumberOfLeaves) {
  const Gpu gpu;
  for (const auto& [rows, columns] : std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {5, 33}, {33, 97}, {70, 20}, {97, 288}}) {
    for (const std::size_t leaves : {1, 3, 9, 16}) {
      const StoredWeight w = reference::make_weight(DType::kF32, rows, columns, reference::make_leaves(DType::kF32, columns, leaves), 1);
      const auto weight = load_cuda_weight(w.spec, w.reader());
      const std::vector<float> bias = reference::random_floats(rows, 3);
      for (const std::size_t tokens : {1, 3, 16, 17, 65}) {
        const std::vector<float> x = reference::random_floats(tokens * columns, 2, 2.0f);
        EXPECT_TRUE(same_bytes(run_linear(gpu, *weight, x, tokens, bias), run_on_cpu(w, x, tokens, bias)))
            << rows << " x " << columns << ", " << leaves << " leaves, " << tokens << " tokens";
      }
    }
  }
}

TEST_F(ExactLinearTest, HasTheBitsOfTheCpuForTheRootsOfEveryShare) {
  const Gpu gpu;
  const parallel::ReductionTree tree(9);
  const std::vector<std::size_t> ends{5, 10, 15, 20, 25, 30, 35, 40, 45};
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t end = begin + 1; end <= 9; end += 2) {
      const StoredWeight w = reference::make_weight(DType::kF32, 40, 5 * (end - begin), tree.leaf_program({begin, end}, ends), 4);
      const auto weight = load_cuda_weight(w.spec, w.reader());
      for (const std::size_t tokens : {2, 20}) {
        const std::vector<float> x = reference::random_floats(tokens * w.spec.columns, 5);
        EXPECT_TRUE(same_bytes(run_linear(gpu, *weight, x, tokens), run_on_cpu(w, x, tokens, {})))
            << "leaves [" << begin << ", " << end << "), " << tokens << " tokens";
      }
    }
  }
}

TEST_F(ExactLinearTest, DoesNotDependOnTheScheduleOfThreads) {
  const StoredWeight w = reference::make_weight(DType::kF32, 70, 60, reference::make_leaves(DType::kF32, 60, 3), 6);
  for (const std::size_t tokens : {3, 20}) {
    const std::vector<float> x = reference::random_floats(tokens * 60, 7);
    const std::vector<float> expected = run_on_cpu(w, x, tokens, {});
    for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      simt::config().schedule = schedule;
      simt::config().shuffle_blocks = true;
      const Gpu gpu;
      EXPECT_TRUE(same_bytes(run_linear(gpu, *load_cuda_weight(w.spec, w.reader()), x, tokens), expected));
    }
  }
}

TEST_F(ExactLinearTest, NonFiniteActivationsSpoilNoOtherToken) {
  const Gpu gpu;
  const StoredWeight w = reference::make_weight(DType::kF32, 33, 40, reference::make_leaves(DType::kF32, 40, 2), 8);
  const auto weight = load_cuda_weight(w.spec, w.reader());
  for (const std::size_t tokens : {3, 19}) {
    std::vector<float> x = reference::random_floats(tokens * 40, 9);
    const std::vector<float> clean = run_linear(gpu, *weight, x, tokens);
    x[40 + 7] = std::nanf("");
    const std::vector<float> out = run_linear(gpu, *weight, x, tokens);
    for (std::size_t token = 0; token < tokens; ++token) {
      if (token == 1) {
        for (const float value : row_of(out, 33, token)) EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_TRUE(same_bytes(row_of(out, 33, token), row_of(clean, 33, token))) << token;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::device::cuda
