// Products by cuBLASLt, for --reduction fast.
#include <gtest/gtest.h>

#include "device/cuda/cublas_linear.h"
#include "tests/simt/linear_support.h"

namespace lockstep::device::cuda {
namespace {

using namespace testing_support;

class CublasLinearOfType : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { simt::reset(); }
};

TEST_P(CublasLinearOfType, IsTheProductForEveryRootWithBiasInItsColumns) {
  const DType dtype = GetParam();
  const std::size_t rows = 37, columns = 75, before = 3;
  const Gpu gpu;
  CublasLinear cublas;
  for (const bool several_roots : {false, true}) {
    const StoredWeight w = reference::make_weight(dtype, rows, columns, reference::make_leaves(dtype, columns, 3, several_roots), 1);
    const auto weight = load_cuda_weight(w.spec, w.reader(), PlainRows::kKeep);
    for (const std::size_t tokens : {1, 5}) {
      const std::vector<float> x = reference::random_floats(tokens * columns, 2);
      std::vector<float> x_rounded, bias = reference::random_floats(rows, 3);
      for (const float value : x) x_rounded.push_back(rounded(value, activation_for(dtype)));
      const std::vector<float> expected = reference::linear(w, x_rounded, tokens, several_roots ? nullptr : bias.data());
      const DeviceRows in = make_rows(x, columns, activation_for(dtype));
      const DeviceMemory bias_memory = to_device(bias);
      const std::size_t stride = before + rows + 1, count = w.spec.num_roots() * tokens;
      const DeviceMemory out = to_device(std::vector<float>(count * stride, -9.0f));
      cublas.linear(gpu.launch(), in.rows, tokens, *weight, several_roots ? nullptr : bias_memory.as<float>(),
                    {out.data(), stride, stride, Activation::kFloat32}, before);
      gpu.synchronize();
      const std::vector<float> wide = floats_of(out);
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const std::size_t column = i % stride;
        if (column < before || column >= before + rows) {
          EXPECT_EQ(wide[i], -9.0f);
        } else {
          EXPECT_NEAR(wide[i], expected[i / stride * rows + column - before], 1e-4);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, CublasLinearOfType, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

class CublasLinearTest : public testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
};

TEST_F(CublasLinearTest, AsksForAnAlgorithmOncePerShape) {
  const Gpu gpu;
  CublasLinear cublas;
  const StoredWeight w = reference::make_weight(DType::kBF16, 16, 64, reference::make_leaves(DType::kBF16, 64, 1), 1);
  const auto weight = load_cuda_weight(w.spec, w.reader(), PlainRows::kKeep);
  const DeviceRows in = make_rows(std::vector<float>(3 * 64), 64, Activation::kBFloat16);
  const DeviceRows out = make_rows(std::vector<float>(3 * 16), 16, Activation::kFloat32);
  for (const std::size_t tokens : {3, 1, 3, 1, 3}) cublas.linear(gpu.launch(), in.rows, tokens, *weight, nullptr, out.rows, 0);
  gpu.synchronize();
  EXPECT_EQ(cublas.num_shapes(), 2u);
  EXPECT_EQ(simt::counters().matmuls, 5u);
}

TEST_F(CublasLinearTest, RefusesAWeightWithoutPlainRows) {
  const Gpu gpu;
  CublasLinear cublas;
  const StoredWeight plain = reference::make_weight(DType::kBF16, 16, 64, reference::make_leaves(DType::kBF16, 64, 1), 1);
  const StoredWeight blocks = reference::make_weight(DType::kQ8_0, 16, 64, reference::make_leaves(DType::kQ8_0, 64, 1), 1);
  const DeviceRows in = make_rows(std::vector<float>(64), 64, Activation::kBFloat16);
  const DeviceRows out = make_rows(std::vector<float>(16), 16, Activation::kFloat32);
  const auto dropped = load_cuda_weight(plain.spec, plain.reader());
  const auto quantised = load_cuda_weight(blocks.spec, blocks.reader(), PlainRows::kKeep);
  EXPECT_THROW(cublas.linear(gpu.launch(), in.rows, 1, *dropped, nullptr, out.rows, 0), std::invalid_argument);
  EXPECT_THROW(cublas.linear(gpu.launch(), in.rows, 1, *quantised, nullptr, out.rows, 0), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device::cuda
