// Ops in place on emulated GPUs: the bits of the CPU device under every schedule.

#include "device/cuda/in_place.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/linear.h"
#include "simt/simt.h"
#include "tests/simt/device_rows.h"

namespace lockstep::device::cuda {
namespace {

using reference::count_different;
using reference::random_floats;

constexpr std::size_t kRows = 3;

class CudaInPlace : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }

  /// What `on_gpu` makes of x is, under every schedule, what `on_cpu` makes of it.
  template <class OnCpu, class OnGpu>
  void expect_same(const std::vector<float>& x, std::size_t columns, const OnCpu& on_cpu, const OnGpu& on_gpu) {
    const reference::OwnedMatrix host = reference::upload(*cpu_, x, columns);
    on_cpu(host.matrix);
    const std::vector<float> expected = reference::download(*cpu_, host.matrix, x.size() / columns);
    for (const simt::Schedule schedule : {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom}) {
      simt::config().schedule = schedule;
      for (const std::size_t skip : {0, 1}) {
        const DeviceRows rows = upload_rows(x, columns, skip);
        on_gpu(rows.rows);
        stream_.synchronize();
        EXPECT_EQ(count_different(rows.values(), expected), 0u) << columns;
      }
    }
    simt::config().schedule = simt::Schedule::kForward;
  }

  std::unique_ptr<Device> cpu_ = make_cpu_device({1});
  TestStream stream_;
};

TEST_F(CudaInPlace, ScalesCapsAndGates) {
  const std::vector<float> gates = {0.3f, -5.0f, 90.0f};
  for (const std::size_t columns : {1, 33, 64, 1100}) {
    std::vector<float> x = random_floats(kRows * columns, 1, 40.0f);
    x[0] = INFINITY;
    x[x.size() - 1] = -1e-30f;
    expect_same(
        x, columns, [&](const Matrix& matrix) { cpu_->scale(matrix, kRows, 0.3f); },
        [&](const Rows& rows) { scale(stream_.launch(), rows, kRows, 0.3f); });
    expect_same(
        x, columns, [&](const Matrix& matrix) { cpu_->soft_cap(matrix, kRows, 15.0f); },
        [&](const Rows& rows) { soft_cap(stream_.launch(), rows, kRows, 15.0f); });
    const reference::OwnedMatrix host_gates = reference::upload(*cpu_, gates, 1);
    const DeviceRows device_gates = upload_rows(gates, 1);
    expect_same(
        x, columns, [&](const Matrix& matrix) { cpu_->gate_rows(matrix, kRows, host_gates.matrix); },
        [&](const Rows& rows) { gate_rows(stream_.launch(), rows, kRows, device_gates.rows); });
  }
}

TEST_F(CudaInPlace, NormsHeads) {
  for (const std::size_t dim : {8, 18, 64, 128}) {
    const std::size_t columns = 6 * dim;
    const std::vector<float> x = random_floats(kRows * columns, 2, 3.0f), weight = random_floats(dim, 3), bias = random_floats(dim, 4);
    const DeviceMemory device_weight = to_device(weight), device_bias = to_device(bias);
    const std::pair<Norm, Norm> norms[] = {
        {Norm::rms(weight.data(), 1e-6f), Norm::rms(device_weight.as<float>(), 1e-6f)},
        {Norm::layer(weight.data(), bias.data(), 1e-6f), Norm::layer(device_weight.as<float>(), device_bias.as<float>(), 1e-6f)}};
    for (const auto& [on_cpu, on_gpu] : norms) {
      expect_same(
          x, columns, [&, norm = on_cpu](const Matrix& matrix) { cpu_->norm_heads(matrix, kRows, dim, 4, dim, norm); },
          [&, norm = on_gpu](const Rows& rows) { norm_heads(stream_.launch(), rows, kRows, dim, 4, dim, norm); });
    }
  }
}

TEST_F(CudaInPlace, NormsOverAllHeads) {
  const std::size_t dim = 24, heads = 3, columns = 5 * dim;
  const std::vector<float> x = random_floats(kRows * columns, 2, 3.0f), weight = random_floats(heads * dim, 3);
  const std::vector<float> sums = random_floats(kRows, 4);
  const DeviceMemory device_weight = to_device(weight);
  const reference::OwnedMatrix host = reference::upload(*cpu_, x, columns);
  const reference::OwnedMatrix squares = reference::make_matrix(*cpu_, Activation::kFloat32, heads * kRows, 1);
  cpu_->square_heads(host.matrix, kRows, dim, heads, dim, squares.matrix);
  const DeviceRows rows = upload_rows(x, columns), out = make_rows(Activation::kFloat32, heads * kRows, 1);
  square_heads(stream_.launch(), rows.rows, kRows, dim, heads, dim, out.rows);
  stream_.synchronize();
  EXPECT_EQ(out.values(), reference::download(*cpu_, squares.matrix, heads * kRows));

  std::vector<float> positive = sums;
  for (float& sum : positive) sum = std::fabs(sum) + 1.0f;
  const reference::OwnedMatrix host_sums = reference::upload(*cpu_, positive, 1);
  const DeviceRows device_sums = upload_rows(positive, 1);
  expect_same(
      x, columns,
      [&](const Matrix& matrix) { cpu_->norm_by_square(matrix, kRows, dim, heads * dim, host_sums.matrix, 96, weight.data(), 1e-5f); },
      [&](const Rows& target) {
        norm_by_square(stream_.launch(), target, kRows, dim, heads * dim, device_sums.rows, 96, device_weight.as<float>(), 1e-5f);
      });
}

TEST_F(CudaInPlace, AddsTheRowsOfPositions) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    const reference::StoredWeight table = reference::make_weight(dtype, 12, 64, {{64, 0, true}}, 3);
    const auto host_table = cpu_->load_weight(table.spec, table.reader());
    const auto device_table = load_cuda_weight(table.spec, table.reader());
    StepBatch batch;
    batch.token_ids = {0, 0, 0};
    batch.positions = {9, 4, 0};
    cpu_->begin_step(batch);
    const DeviceMemory positions = to_device(batch.positions);
    StepView view;
    view.positions = positions.as<std::int32_t>();
    view.num_tokens = kRows;
    expect_same(
        random_floats(kRows * 64, 2), 64, [&](const Matrix& matrix) { cpu_->add_positions(*host_table, 2, matrix); },
        [&](const Rows& rows) { add_positions(stream_.launch(), *device_table, 2, view, rows); });
  }
}

}  // namespace
}  // namespace lockstep::device::cuda
