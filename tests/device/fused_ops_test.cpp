// Ops that are two in one, against the two.
#include <gtest/gtest.h>

#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

TEST(SumAddNorm, GivesTheBitsOfTheSumAndTheNorm) {
  constexpr std::size_t kRows = 5, kColumns = 96;
  const std::vector<float> x = random_floats(kRows * kColumns, 1), bias = random_floats(kColumns, 2), weight = random_floats(kColumns, 3);
  std::vector<std::vector<float>> parts;
  for (std::uint32_t part = 0; part < 5; ++part) parts.push_back(random_floats(kRows * kColumns, 10 + part));
  const std::vector<std::vector<SumOfParts::Merge>> trees = {{}, {{1, 0}, {0, 1}}, {{0, 1}, {2, 3}, {0, 2}, {0, 4}}};
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const std::vector<SumOfParts::Merge>& merges : trees) {
      std::vector<std::vector<float>> sums = parts;
      for (const SumOfParts::Merge merge : merges) {
        for (std::size_t i = 0; i < sums[0].size(); ++i) sums[merge.into][i] += sums[merge.from][i];
      }
      std::vector<const float*> places;
      for (const std::vector<float>& part : parts) places.push_back(part.data());
      for (const Activation type : {Activation::kFloat32, Activation::kInt8Blocks}) {
        for (const std::size_t rows : {std::size_t{1}, kRows}) {
          const OwnedMatrix delta = upload(*device, sums[0], kColumns), one = upload(*device, x, kColumns),
                            two = upload(*device, x, kColumns);
          const OwnedMatrix fused = make_matrix(*device, type, rows, kColumns), separate = make_matrix(*device, type, rows, kColumns);
          const Norm norm = Norm::rms(weight.data(), 1e-5f);
          device->run_step([&] {
            device->sum_add_norm(one.matrix, {places, merges}, rows, bias.data(), norm, fused.matrix);
            device->add_norm(two.matrix, delta.matrix, rows, bias.data(), norm, separate.matrix);
          });
          EXPECT_EQ(count_different(download(*device, one.matrix, kRows), download(*device, two.matrix, kRows)), 0u);
          EXPECT_EQ(count_different(download(*device, fused.matrix, rows), download(*device, separate.matrix, rows)), 0u);
        }
      }
    }
  }
}

TEST(LinearTop, GivesTheProductsAndTheTopsOfTheTwoOps) {
  for (const std::size_t ids : {std::size_t{1}, std::size_t{97}, std::size_t{3000}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
      StoredWeight stored = make_weight(dtype, ids, 64, make_leaves(dtype, 64, 1), 7);
      for (const CpuOptions& options : all_options()) {
        const auto device = make_cpu_device(options);
        const auto weight = device->load_weight(stored.spec, stored.reader());
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, std::size_t{90}}) {  // several steps a thread
          const OwnedMatrix in = upload(*device, random_floats(rows * 64, 8), 64, device->activation_for(dtype));
          const OwnedMatrix fused = make_matrix(*device, Activation::kFloat32, rows, ids),
                            separate = make_matrix(*device, Activation::kFloat32, rows, ids);
          std::vector<Top> tops(rows), expected(rows);
          device->run_step([&] { device->linear_top(in.matrix, rows, *weight, nullptr, fused.matrix); });
          device->read_tops(tops);
          device->run_step([&] {
            device->linear(in.matrix, rows, *weight, nullptr, separate.matrix, 0);
            device->top_of_rows(separate.matrix, rows);
          });
          device->read_tops(expected);
          EXPECT_EQ(count_different(download(*device, fused.matrix, rows), download(*device, separate.matrix, rows)), 0u);
          for (std::size_t row = 0; row < rows; ++row) {
            EXPECT_EQ(tops[row].id, expected[row].id) << ids << " ids, row " << row;
            EXPECT_EQ(tops[row].logit, expected[row].logit);
            EXPECT_EQ(tops[row].finite, expected[row].finite);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::device
