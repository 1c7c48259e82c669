#include "device/cuda/rows.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "simt/simt.h"
#include "tests/simt/device_rows.h"

namespace lockstep::device::cuda {
namespace {

using reference::count_different;
using reference::random_floats;

constexpr std::size_t kRows = 3;
constexpr Activation kTypes[] = {Activation::kFloat32, Activation::kFloat16, Activation::kBFloat16};
const std::vector<std::size_t> kWidths = {1, 20, 33, 64, 576, 1024, 1030, 2052};

class CudaRows : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  std::unique_ptr<Device> cpu_ = make_cpu_device({1});
  TestStream stream_;

  /// x and rms_norm(x) after x += delta (+ bias), by the CPU device.
  std::pair<std::vector<float>, std::vector<float>> expected_norm(const std::vector<float>& x, const std::vector<float>& delta,
                                                                  const float* bias, const std::vector<float>& weight) {
    const reference::OwnedMatrix in = reference::upload(*cpu_, x, weight.size());
    const reference::OwnedMatrix out = reference::make_matrix(*cpu_, Activation::kFloat32, kRows, weight.size());
    if (delta.empty()) {
      cpu_->rms_norm(in.matrix, kRows, weight.data(), 1e-5f, out.matrix);
    } else {
      const reference::OwnedMatrix from = reference::upload(*cpu_, delta, weight.size());
      cpu_->add_rms_norm(in.matrix, from.matrix, kRows, bias, weight.data(), 1e-5f, out.matrix);
    }
    return {reference::download(*cpu_, in.matrix, kRows), reference::download(*cpu_, out.matrix, kRows)};
  }

  Top top_of(const std::vector<float>& row, std::size_t skip = 0) {
    const DeviceRows logits = upload_rows(row, row.size(), skip);
    const DeviceMemory tops(sizeof(Top), "a test");
    top_of_rows(stream_.launch(), logits.rows, 1, tops.as<Top>());
    stream_.synchronize();
    return from_device<Top>(tops.data(), 1).front();
  }
};

TEST_F(CudaRows, NormsAndSumsInFloat32HaveTheBitsOfTheCpuDevice) {
  for (const std::size_t columns : kWidths) {
    const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f), delta = random_floats(kRows * columns, 2),
                             bias = random_floats(columns, 3), weight = random_floats(columns, 4);
    const DeviceMemory device_bias = to_device(bias), device_weight = to_device(weight);
    for (const std::size_t skip : {0, 1}) {
      for (const bool with_delta : {false, true}) {
        for (const bool with_bias : {false, true}) {
          const auto [sums, norms] = expected_norm(x, with_delta ? delta : std::vector<float>{}, with_bias ? bias.data() : nullptr, weight);
          const DeviceRows to = upload_rows(x, columns, skip), from = upload_rows(delta, columns);
          const DeviceRows out = make_rows(Activation::kFloat32, kRows, columns);
          if (with_delta) {
            add_rms_norm(stream_.launch(), to.rows, from.rows, kRows, with_bias ? device_bias.as<float>() : nullptr,
                         device_weight.as<float>(), 1e-5f, out.rows);
          } else {
            rms_norm(stream_.launch(), to.rows, kRows, device_weight.as<float>(), 1e-5f, out.rows);
          }
          stream_.synchronize();
          EXPECT_EQ(count_different(to.values(), sums), 0u) << columns;
          EXPECT_EQ(count_different(out.values(), norms), 0u) << columns;
        }
      }
    }
  }
}

TEST_F(CudaRows, A16BitNormIsNearAndDependsNeitherOnAlignmentNorOnOtherRowsNorOnTheSchedule) {
  for (const Activation type : {Activation::kFloat16, Activation::kBFloat16}) {
    const float unit = type == Activation::kFloat16 ? 0x1p-11f : 0x1p-8f;
    for (const std::size_t columns : kWidths) {
      const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f), weight = random_floats(columns, 4);
      const DeviceMemory device_weight = to_device(weight);
      const std::vector<float> exact = expected_norm(x, {}, nullptr, weight).second;
      const auto run = [&](std::size_t first_row, std::size_t skip) {
        const DeviceRows in = upload_rows({x.begin() + static_cast<std::ptrdiff_t>(first_row * columns), x.end()}, columns, skip);
        const DeviceRows out = make_rows(type, in.num_rows, columns);
        rms_norm(stream_.launch(), in.rows, in.num_rows, device_weight.as<float>(), 1e-5f, out.rows);
        stream_.synchronize();
        return out.values();
      };
      const std::vector<float> norms = run(0, 0);
      for (std::size_t i = 0; i < norms.size(); ++i) ASSERT_NEAR(norms[i], exact[i], unit * std::fabs(exact[i]) + 0x1p-24f) << columns;
      EXPECT_EQ(run(0, 1), norms);
      EXPECT_EQ(run(2, 0), std::vector<float>(norms.end() - static_cast<std::ptrdiff_t>(columns), norms.end()));
      for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom}) {
        simt::config().schedule = schedule;
        EXPECT_EQ(run(0, 0), norms);
      }
      simt::config().schedule = simt::Schedule::kForward;
    }
  }
}

TEST_F(CudaRows, AFloat32NormIsTheSameUnderEverySchedule) {
  const std::size_t columns = 2052;
  const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f), weight = random_floats(columns, 4);
  const DeviceMemory device_weight = to_device(weight);
  const std::vector<float> expected = expected_norm(x, {}, nullptr, weight).second;
  for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
    simt::config().schedule = schedule;
    const DeviceRows in = upload_rows(x, columns), out = make_rows(Activation::kFloat32, kRows, columns);
    rms_norm(stream_.launch(), in.rows, kRows, device_weight.as<float>(), 1e-5f, out.rows);
    stream_.synchronize();
    EXPECT_EQ(count_different(out.values(), expected), 0u);
  }
}

TEST_F(CudaRows, AddAddsTheBiasToTheDeltaFirst) {
  for (const std::size_t columns : {50, 1028}) {
    const std::vector<float> x = random_floats(kRows * columns, 1), delta = random_floats(kRows * columns, 2),
                             bias = random_floats(columns, 3);
    const DeviceMemory device_bias = to_device(bias);
    for (const float* b : {static_cast<const float*>(nullptr), static_cast<const float*>(device_bias.as<float>())}) {
      const DeviceRows to = upload_rows(x, columns), from = upload_rows(delta, columns);
      add(stream_.launch(), to.rows, from.rows, kRows, b);
      stream_.synchronize();
      std::vector<float> expected;
      for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(x[i] + (b != nullptr ? delta[i] + bias[i % columns] : delta[i]));
      EXPECT_EQ(to.values(), expected);
    }
  }
}

TEST_F(CudaRows, SwigluHasTheBitsOfTheCpuDeviceRoundedToTheOutput) {
  for (const std::size_t n : {97, 128, 1100}) {
    std::vector<float> x = random_floats(kRows * 2 * n, 5, 12.0f);
    x[0] = 200.0f;
    x[1] = -200.0f;
    x[2] = INFINITY;
    x[3] = std::nanf("");
    const reference::OwnedMatrix in = reference::upload(*cpu_, x, 2 * n);
    const reference::OwnedMatrix floats = reference::make_matrix(*cpu_, Activation::kFloat32, kRows, n);
    cpu_->swiglu(in.matrix, kRows, floats.matrix);
    const std::vector<float> expected = reference::download(*cpu_, floats.matrix, kRows);
    for (const Activation type : kTypes) {
      const DeviceRows gate_up = upload_rows(x, 2 * n), out = make_rows(type, kRows, n);
      swiglu(stream_.launch(), gate_up.rows, kRows, out.rows);
      stream_.synchronize();
      EXPECT_EQ(count_different(out.values(), rounded(expected, type)), 0u) << n << " " << name_of(type);
    }
  }
}

TEST_F(CudaRows, ConvertRoundsToTheNearestTiesToEven) {
  std::vector<float> x = random_floats(kRows * 68, 1, 70000.0f);
  const float special[] = {0.0f,    -0.0f,    65519.0f, 65520.0f, -1e30f,         INFINITY,           -INFINITY,       std::nanf(""),
                           1e-6f,   3e-8f,    1e-45f,   6.1e-5f,  1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f,
                           3.4e38f, -3.39e38f};
  std::copy(std::begin(special), std::end(special), x.begin());
  for (const Activation type : kTypes) {
    const DeviceRows in = upload_rows(x, 68), out = make_rows(type, kRows, 68);
    convert(stream_.launch(), in.rows, kRows, out.rows);
    stream_.synchronize();
    EXPECT_EQ(count_different(out.values(), rounded(x, type)), 0u) << name_of(type);
  }
}

TEST_F(CudaRows, GatherCopiesTheRowsThatAreAskedFor) {
  for (const std::size_t columns : {3, 64}) {
    const std::vector<float> x = random_floats(5 * columns, 1);
    const DeviceMemory rows = to_device(std::vector<std::uint32_t>{4, 1, 1});
    const DeviceRows from = upload_rows(x, columns), out = make_rows(Activation::kFloat32, 3, columns);
    gather_rows(stream_.launch(), from.rows, rows.as<std::uint32_t>(), 3, out.rows);
    stream_.synchronize();
    std::vector<float> expected;
    for (const std::size_t row : {4, 1, 1}) {
      expected.insert(expected.end(), x.begin() + static_cast<std::ptrdiff_t>(row * columns),
                      x.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
    }
    EXPECT_EQ(out.values(), expected);
  }
}

TEST_F(CudaRows, TheTopOfARowIsThatOfTheCpuDevice) {
  const float specials[] = {2.0f, INFINITY, -INFINITY, std::nanf("")};
  std::mt19937 generator(9);
  const auto compare = [&](const std::vector<float>& row, std::size_t skip) {
    const reference::OwnedMatrix logits = reference::upload(*cpu_, row, row.size());
    Top expected;
    cpu_->prepare_steps({.max_tokens = 1, .max_logit_rows = 1});
    cpu_->top_of_rows(logits.matrix, 1);
    cpu_->read_tops(std::span(&expected, 1));
    const Top found = top_of(row, skip);
    EXPECT_EQ(found.id, expected.id) << row.size();
    EXPECT_TRUE(reference::same(found.logit, expected.logit)) << found.logit << " " << expected.logit;
    EXPECT_EQ(found.finite, expected.finite);
  };
  for (const std::size_t n : {1, 15, 16, 97, 2500}) {
    for (int round = 0; round < 12; ++round) {
      std::vector<float> row = random_floats(n, static_cast<std::uint32_t>(round + 1));
      for (int i = 0; i < round % 4; ++i) row[generator() % n] = specials[generator() % 4];
      compare(row, static_cast<std::size_t>(round % 2));
    }
    for (const float value : {-5.0f, -INFINITY, std::nanf("")}) compare(std::vector<float>(n, value), 0);
    std::vector<float> zeros(n, -1.0f);
    zeros[n / 3] = -0.0f;
    zeros[n - 1] = 0.0f;
    compare(zeros, 0);
  }
}

TEST_F(CudaRows, ARowOfNoColumnsHasNoTop) {
  const Top none = top_of({});
  EXPECT_EQ(none.id, -1);
  EXPECT_TRUE(none.finite);
}

TEST_F(CudaRows, NoRowsAreNoLaunch) {
  const DeviceRows x = upload_rows({}, 8);
  const DeviceMemory weight = to_device(std::vector<float>(8, 1.0f));
  rms_norm(stream_.launch(), x.rows, 0, weight.as<float>(), 1e-5f, x.rows);
  convert(stream_.launch(), x.rows, 0, x.rows);
  swiglu(stream_.launch(), x.rows, 0, x.rows);
  EXPECT_EQ(simt::counters().launches, 0u);
}

}  // namespace
}  // namespace lockstep::device::cuda
