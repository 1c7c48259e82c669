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

  /// x and norm(x) after x += delta (+ bias), by the CPU device.
  std::pair<std::vector<float>, std::vector<float>> expected_norm(const std::vector<float>& x, const std::vector<float>& delta,
                                                                  const float* bias, const Norm& norm, std::size_t columns) {
    const reference::OwnedMatrix in = reference::upload(*cpu_, x, columns);
    const reference::OwnedMatrix out = reference::make_matrix(*cpu_, Activation::kFloat32, kRows, columns);
    if (delta.empty()) {
      cpu_->norm(in.matrix, kRows, norm, out.matrix);
    } else {
      const reference::OwnedMatrix from = reference::upload(*cpu_, delta, columns);
      cpu_->add_norm(in.matrix, from.matrix, kRows, bias, norm, out.matrix);
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

/// A norm's vectors on both sides, and the norms that are made of them.
struct NormVectors {
  explicit NormVectors(std::size_t columns) : weight(random_floats(columns, 4)), bias(random_floats(columns, 5)) {}
  std::vector<float> weight, bias;
  DeviceMemory device_weight = to_device(weight), device_bias = to_device(bias);

  std::vector<std::pair<Norm, Norm>> norms() const {  // {for the CPU, for the GPU}
    std::vector<std::pair<Norm, Norm>> all{{Norm::rms(weight.data(), 1e-5f), Norm::rms(device_weight.as<float>(), 1e-5f)}};
    all.push_back({Norm::layer(weight.data(), bias.data(), 1e-5f), Norm::layer(device_weight.as<float>(), device_bias.as<float>(), 1e-5f)});
    all.push_back({Norm::layer(weight.data(), nullptr, 1e-5f), Norm::layer(device_weight.as<float>(), nullptr, 1e-5f)});
    all.push_back({Norm::layer(nullptr, nullptr, 1e-5f), Norm::layer(nullptr, nullptr, 1e-5f)});
    return all;
  }
};

TEST_F(CudaRows, NormsAndSumsInFloat32HaveTheBitsOfTheCpuDevice) {
  for (const std::size_t columns : kWidths) {
    std::vector<float> x = random_floats(kRows * columns, 1, 3.0f);
    for (float& value : x) value += 1.0f;
    const std::vector<float> delta = random_floats(kRows * columns, 2), bias = random_floats(columns, 3);
    const NormVectors vectors(columns);
    const DeviceMemory device_bias = to_device(bias);
    for (const auto& [cpu_norm, gpu_norm] : vectors.norms()) {
      for (const std::size_t skip : {0, 1}) {
        for (const bool with_delta : {false, true}) {
          for (const bool with_bias : {false, true}) {
            const auto [sums, norms] =
                expected_norm(x, with_delta ? delta : std::vector<float>{}, with_bias ? bias.data() : nullptr, cpu_norm, columns);
            const DeviceRows to = upload_rows(x, columns, skip), from = upload_rows(delta, columns);
            const DeviceRows out = make_rows(Activation::kFloat32, kRows, columns);
            if (with_delta) {
              add_norm(stream_.launch(), to.rows, from.rows, kRows, with_bias ? device_bias.as<float>() : nullptr, gpu_norm, out.rows);
            } else {
              norm(stream_.launch(), to.rows, kRows, gpu_norm, out.rows);
            }
            stream_.synchronize();
            EXPECT_EQ(count_different(to.values(), sums), 0u) << columns;
            EXPECT_EQ(count_different(out.values(), norms), 0u) << columns;
          }
        }
      }
    }
  }
}

TEST_F(CudaRows, A16BitNormIsNearAndDependsNeitherOnAlignmentNorOnOtherRowsNorOnTheSchedule) {
  for (const Activation type : {Activation::kFloat16, Activation::kBFloat16}) {
    const float unit = type == Activation::kFloat16 ? 0x1p-11f : 0x1p-8f;
    for (const std::size_t columns : kWidths) {
      const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f);
      const NormVectors vectors(columns);
      for (const auto& [cpu_norm, gpu_norm] : vectors.norms()) {
        const std::vector<float> exact = expected_norm(x, {}, nullptr, cpu_norm, columns).second;
        const auto run = [&, gpu = gpu_norm](std::size_t first_row, std::size_t skip) {
          const DeviceRows in = upload_rows({x.begin() + static_cast<std::ptrdiff_t>(first_row * columns), x.end()}, columns, skip);
          const DeviceRows out = make_rows(type, in.num_rows, columns);
          norm(stream_.launch(), in.rows, in.num_rows, gpu, out.rows);
          stream_.synchronize();
          return out.values();
        };
        const std::vector<float> norms = run(0, 0);
        // A bias may take most of a value away, and then the fp32 rounding of the sums shows.
        for (std::size_t i = 0; i < norms.size(); ++i) ASSERT_NEAR(norms[i], exact[i], unit * std::fabs(exact[i]) + 0x1p-20f) << columns;
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
}

TEST_F(CudaRows, AFloat32NormIsTheSameUnderEverySchedule) {
  const std::size_t columns = 2052;
  const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f);
  const NormVectors vectors(columns);
  for (const auto& [cpu_norm, gpu_norm] : vectors.norms()) {
    const std::vector<float> expected = expected_norm(x, {}, nullptr, cpu_norm, columns).second;
    for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      simt::config().schedule = schedule;
      const DeviceRows in = upload_rows(x, columns), out = make_rows(Activation::kFloat32, kRows, columns);
      norm(stream_.launch(), in.rows, kRows, gpu_norm, out.rows);
      stream_.synchronize();
      EXPECT_EQ(count_different(out.values(), expected), 0u);
    }
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

TEST_F(CudaRows, EveryFunctionHasTheBitsOfTheCpuDeviceRoundedToTheOutput) {
  for (const std::size_t n : {97, 128, 1100}) {
    std::vector<float> x = random_floats(kRows * 2 * n, 5, 12.0f);
    const float specials[] = {200.0f, -200.0f, INFINITY, -INFINITY, std::nanf(""), -0.0f, 1e-30f};
    std::copy(std::begin(specials), std::end(specials), x.begin());
    for (const Nonlinearity function :
         {Nonlinearity::kSilu, Nonlinearity::kGelu, Nonlinearity::kGeluTanh, Nonlinearity::kRelu, Nonlinearity::kGeluQuick}) {
      for (const bool is_gated : {false, true}) {
        const std::size_t in_columns = is_gated ? 2 * n : n, rows = is_gated ? kRows : 2 * kRows;
        const reference::OwnedMatrix in = reference::upload(*cpu_, x, in_columns);
        const reference::OwnedMatrix floats = reference::make_matrix(*cpu_, Activation::kFloat32, rows, n);
        is_gated ? cpu_->gated({function}, in.matrix, rows, floats.matrix) : cpu_->activate(function, in.matrix, rows, floats.matrix);
        const std::vector<float> expected = reference::download(*cpu_, floats.matrix, rows);
        for (const Activation type : kTypes) {
          const DeviceRows from = upload_rows(x, in_columns), out = make_rows(type, rows, n);
          is_gated ? gated(stream_.launch(), {function}, from.rows, rows, out.rows)
                   : activate(stream_.launch(), function, from.rows, rows, out.rows);
          stream_.synchronize();
          EXPECT_EQ(count_different(out.values(), rounded(expected, type)), 0u) << n << " " << name_of(function) << " " << name_of(type);
        }
      }
    }
  }
}

TEST_F(CudaRows, ALimitedGateHasTheBitsOfTheCpuDeviceRoundedToTheOutput) {
  const Gating gating{.function = Nonlinearity::kGeluQuick, .limit = 7.0f, .up_offset = 1.0f};
  for (const std::size_t n : {97, 128}) {
    std::vector<float> x = random_floats(kRows * 2 * n, 5, 20.0f);
    const float specials[] = {7.0f, INFINITY, -INFINITY, std::nanf(""), -0.0f};
    std::copy(std::begin(specials), std::end(specials), x.begin());
    std::copy(std::begin(specials), std::end(specials), x.begin() + static_cast<std::ptrdiff_t>(n + 10));
    const reference::OwnedMatrix in = reference::upload(*cpu_, x, 2 * n);
    const reference::OwnedMatrix floats = reference::make_matrix(*cpu_, Activation::kFloat32, kRows, n);
    cpu_->gated(gating, in.matrix, kRows, floats.matrix);
    const std::vector<float> expected = reference::download(*cpu_, floats.matrix, kRows);
    for (const Activation type : kTypes) {
      const DeviceRows from = upload_rows(x, 2 * n), out = make_rows(type, kRows, n);
      gated(stream_.launch(), gating, from.rows, kRows, out.rows);
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
  norm(stream_.launch(), x.rows, 0, Norm::rms(weight.as<float>(), 1e-5f), x.rows);
  convert(stream_.launch(), x.rows, 0, x.rows);
  gated(stream_.launch(), {Nonlinearity::kSilu}, x.rows, 0, x.rows);
  EXPECT_EQ(simt::counters().launches, 0u);
}

}  // namespace
}  // namespace lockstep::device::cuda
