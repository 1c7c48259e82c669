#include <algorithm>

#include <gtest/gtest.h>

#include "device/cpu/kernels.h"
#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

float sum_in_lanes(const float* x, std::size_t n, bool squares) {
  float lanes[16] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 16] = squares ? std::fma(x[i], x[i], lanes[i % 16]) : lanes[i % 16] + x[i];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

float sum_of_squares(const float* x, std::size_t n) { return sum_in_lanes(x, n, true); }

TEST(RmsNorm, GivesTheBitsOfTheDefinition) {
  for (const std::size_t columns : {1, 20, 33, 64, 288, 576}) {
    const std::vector<float> x = random_floats(37 * columns, 1, 3.0f), weight = random_floats(columns, 2);
    std::vector<float> expected;
    for (std::size_t t = 0; t < 37; ++t) {
      const float inverse = 1.0f / std::sqrt(sum_of_squares(&x[t * columns], columns) / static_cast<float>(columns) + 1e-5f);
      for (std::size_t i = 0; i < columns; ++i) expected.push_back((x[t * columns + i] * inverse) * weight[i]);
    }
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      for (const std::size_t rows : {1, 37}) {
        const OwnedMatrix in = upload(*device, x, columns), out = make_matrix(*device, Activation::kFloat32, rows, columns);
        device->norm(in.matrix, rows, Norm::rms(weight.data(), 1e-5f), out.matrix);
        EXPECT_EQ(count_different(download(*device, out.matrix, rows),
                                  {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(rows * columns)}),
                  0u)
            << device->description() << " " << columns;
      }
    }
  }
}

TEST(RmsNorm, OfOnesIsTheWeight) {
  const auto device = make_cpu_device({1});
  const std::vector<float> weight = random_floats(48, 2);
  const OwnedMatrix in = upload(*device, std::vector<float>(48, 1.0f), 48), out = make_matrix(*device, Activation::kFloat32, 1, 48);
  device->norm(in.matrix, 1, Norm::rms(weight.data(), 0.0f), out.matrix);
  EXPECT_EQ(download(*device, out.matrix, 1), weight);
}

TEST(RmsNorm, QuantisesItsOutputAsConvertDoes) {
  const std::vector<float> x = random_floats(40 * 576, 1, 3.0f), weight = random_floats(576, 2);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix in = upload(*device, x, 576), floats = make_matrix(*device, Activation::kFloat32, 40, 576);
    const OwnedMatrix blocks = make_matrix(*device, Activation::kInt8Blocks, 40, 576),
                      converted = make_matrix(*device, Activation::kInt8Blocks, 40, 576);
    device->norm(in.matrix, 40, Norm::rms(weight.data(), 1e-5f), floats.matrix);
    device->convert(floats.matrix, 40, converted.matrix);
    device->norm(in.matrix, 40, Norm::rms(weight.data(), 1e-5f), blocks.matrix);
    EXPECT_EQ(count_different(download(*device, blocks.matrix, 40), download(*device, converted.matrix, 40)), 0u);
  }
}

/// By the definition of N3; null vectors are ones and zeros.
std::vector<float> layer_norm(const std::vector<float>& x, std::size_t columns, const float* weight, const float* bias) {
  std::vector<float> out;
  for (std::size_t first = 0; first < x.size(); first += columns) {
    const float mean = sum_in_lanes(&x[first], columns, false) / static_cast<float>(columns);
    std::vector<float> centred;
    for (std::size_t i = 0; i < columns; ++i) centred.push_back(x[first + i] - mean);
    const float inverse = 1.0f / std::sqrt(sum_of_squares(centred.data(), columns) / static_cast<float>(columns) + 1e-5f);
    for (std::size_t i = 0; i < columns; ++i) {
      float value = centred[i] * inverse;
      if (weight != nullptr) value = value * weight[i];
      if (bias != nullptr) value = value + bias[i];
      out.push_back(value);
    }
  }
  return out;
}

TEST(LayerNorm, GivesTheBitsOfTheDefinitionWithAndWithoutWeightAndBias) {
  for (const std::size_t columns : {1, 20, 33, 64, 288, 576}) {
    std::vector<float> x = random_floats(19 * columns, 1, 3.0f);
    for (float& value : x) value += 5.0f;
    const std::vector<float> weight = random_floats(columns, 2), bias = random_floats(columns, 3);
    for (const bool with_weight : {false, true}) {
      for (const bool with_bias : {false, true}) {
        const float* w = with_weight ? weight.data() : nullptr;
        const float* b = with_bias ? bias.data() : nullptr;
        const std::vector<float> expected = layer_norm(x, columns, w, b);
        for (const CpuOptions& options : all_options()) {
          const auto device = make_cpu_device(options);
          const OwnedMatrix in = upload(*device, x, columns), out = make_matrix(*device, Activation::kFloat32, 19, columns);
          device->norm(in.matrix, 19, Norm::layer(w, b, 1e-5f), out.matrix);
          EXPECT_EQ(count_different(download(*device, out.matrix, 19), expected), 0u) << device->description() << " " << columns;
        }
      }
    }
  }
}

TEST(LayerNorm, HasMeanZeroAndVarianceOne) {
  const auto device = make_cpu_device({1});
  const OwnedMatrix in = upload(*device, random_floats(1000, 7, 9.0f), 1000), out = make_matrix(*device, Activation::kFloat32, 1, 1000);
  device->norm(in.matrix, 1, Norm::layer(nullptr, nullptr, 0.0f), out.matrix);
  double sum = 0, squares = 0;
  for (const float value : download(*device, out.matrix, 1)) sum += value, squares += double{value} * value;
  EXPECT_NEAR(sum, 0.0, 1e-3);
  EXPECT_NEAR(squares / 1000, 1.0, 1e-5);
}

TEST(Convert, QuantisesByTheDefinition) {
  std::vector<float> x = random_floats(9 * 96, 4, 100.0f);
  std::fill(x.begin(), x.begin() + 32, 0.0f);                                  // a block of zeros
  std::fill(x.begin() + 32, x.begin() + 64, 1e-42f);                           // of subnormal numbers: 127 / amax overflows
  for (std::size_t i = 64; i < 96; ++i) x[i] = static_cast<float>(i) - 79.5f;  // ties
  for (std::size_t i = 96; i < 128; ++i) x[i] = i % 2 ? 3.4e38f : -3.4e38f;
  x[160] = INFINITY;
  x[200] = std::nanf("");
  std::vector<float> expected;
  for (std::size_t t = 0; t < 9; ++t) {
    const Int8Row row = quantise(&x[t * 96], 96);
    for (std::size_t i = 0; i < 96; ++i) expected.push_back(row.scales[i / 32] * static_cast<float>(row.quants[i]));
  }
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix blocks = upload(*device, x, 96, Activation::kInt8Blocks);
    EXPECT_EQ(count_different(download(*device, blocks.matrix, 9), expected), 0u) << device->description();
    const OwnedMatrix back = make_matrix(*device, Activation::kFloat32, 9, 96);
    device->convert(blocks.matrix, 9, back.matrix);
    EXPECT_EQ(count_different(download(*device, back.matrix, 9), expected), 0u);
  }
}

TEST(Matrix, RefusesInt8BlocksThatAreNotWhole) {
  EXPECT_THROW((void)make_cpu_device({1})->matrix_bytes(Activation::kInt8Blocks, 1, 33), std::invalid_argument);
}

TEST(Swiglu, IsNearTheFormulaAndTheSameOnEveryInstructionSet) {
  const std::size_t n = 97;
  const std::vector<float> x = random_floats(20 * 2 * n, 5, 12.0f);
  const auto plain = make_cpu_device({1, Isa::kPortable});
  const OwnedMatrix first_in = upload(*plain, x, 2 * n), first_out = make_matrix(*plain, Activation::kFloat32, 20, n);
  plain->gated(Nonlinearity::kSilu, first_in.matrix, 20, first_out.matrix);
  const std::vector<float> expected = download(*plain, first_out.matrix, 20);
  for (std::size_t t = 0; t < 20; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      const double gate = x[2 * t * n + i], value = gate / (1.0 + std::exp(-gate)) * double{x[(2 * t + 1) * n + i]};
      EXPECT_NEAR(expected[t * n + i], value, 4e-7 * std::fabs(value));
    }
  }
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix in = upload(*device, x, 2 * n), out = make_matrix(*device, Activation::kFloat32, 20, n);
    device->gated(Nonlinearity::kSilu, in.matrix, 20, out.matrix);
    EXPECT_EQ(count_different(download(*device, out.matrix, 20), expected), 0u) << device->description();
  }
}

constexpr Nonlinearity kFunctions[] = {Nonlinearity::kSilu, Nonlinearity::kGelu, Nonlinearity::kGeluTanh, Nonlinearity::kRelu};

double exact(Nonlinearity function, double x) {
  switch (function) {
    case Nonlinearity::kSilu: return x / (1.0 + std::exp(-x));
    case Nonlinearity::kGelu: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case Nonlinearity::kGeluTanh:
      // The same as x / 2 * (1 + tanh(u)), without its cancellation.
      return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Nonlinearity::kRelu: return std::max(x, 0.0);
  }
  return 0.0;
}

/// function(x), or of its first half times the second, on one device.
std::vector<float> activated(Device& device, Nonlinearity function, const std::vector<float>& x, std::size_t rows, bool is_gated) {
  const std::size_t columns = x.size() / rows, n = is_gated ? columns / 2 : columns;
  const OwnedMatrix in = upload(device, x, columns), out = make_matrix(device, Activation::kFloat32, rows, n);
  if (is_gated) {
    device.gated(function, in.matrix, rows, out.matrix);
  } else {
    device.activate(function, in.matrix, rows, out.matrix);
  }
  return download(device, out.matrix, rows);
}

TEST(Activate, IsNearTheFunctionOverItsWholeRange) {
  std::vector<float> x;
  for (int i = -400'000; i <= 400'000; ++i) x.push_back(static_cast<float>(i) * 4e-5f);
  for (const float special : {0.0f, -0.0f, 1e-30f, -1e-30f, 100.0f, 3e38f}) x.push_back(special);
  const auto device = make_cpu_device({1});
  for (const Nonlinearity function : kFunctions) {
    const std::vector<float> found = activated(*device, function, x, 1, false);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = exact(function, double{x[i]});
      if (std::fabs(expected) < 1e-30) continue;  // subnormal tails
      worst = std::max(worst, std::fabs(found[i] - expected) / std::fabs(expected));
    }
    // exp's argument carries the error of the cubic, which counts where the result is all but gone: at x = -10, u is 43.
    EXPECT_LE(worst, function == Nonlinearity::kGeluTanh ? 2e-5 : 6e-7) << name_of(function);
    std::printf("%s: relative error at most %.2g\n", std::string(name_of(function)).c_str(), worst);
  }
}

TEST(Activate, GivesTheSameBitsOnEveryInstructionSetForEverySize) {
  const auto plain = make_cpu_device({1, Isa::kPortable});
  for (const std::size_t n : {1, 15, 16, 33, 97}) {
    std::vector<float> x = random_floats(20 * 2 * n, 5, 12.0f);
    const float specials[] = {INFINITY, -INFINITY, 200.0f, -200.0f, -0.0f};
    std::copy(std::begin(specials), std::end(specials), x.begin());
    x.back() = std::nanf("");
    for (const Nonlinearity function : kFunctions) {
      for (const bool is_gated : {false, true}) {
        const std::vector<float> expected = activated(*plain, function, x, 20, is_gated);
        for (const CpuOptions& options : all_options()) {
          const auto device = make_cpu_device(options);
          EXPECT_EQ(count_different(activated(*device, function, x, 20, is_gated), expected), 0u)
              << device->description() << " " << name_of(function) << " " << n;
        }
      }
    }
  }
}

TEST(Activate, WithAGateIsTheProductOfTheTwo) {
  const auto device = make_cpu_device({1});
  const std::vector<float> x = random_floats(3 * 2 * 40, 6, 4.0f);
  for (const Nonlinearity function : kFunctions) {
    const std::vector<float> all = activated(*device, function, x, 3, false), gated = activated(*device, function, x, 3, true);
    for (std::size_t i = 0; i < gated.size(); ++i)
      EXPECT_EQ(gated[i], all[i / 40 * 80 + i % 40] * x[i / 40 * 80 + 40 + i % 40]) << name_of(function);
  }
}

TEST(Activate, KeepsNotANumber) {
  const auto device = make_cpu_device({1});
  for (const Nonlinearity function : kFunctions)
    EXPECT_TRUE(std::isnan(activated(*device, function, {std::nanf("")}, 1, false)[0])) << name_of(function);
}

TEST(Add, AddsTheBiasToTheDeltaFirst) {
  const std::vector<float> x = random_floats(5 * 50, 1), delta = random_floats(5 * 50, 2), bias = random_floats(50, 3);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
      const OwnedMatrix to = upload(*device, x, 50), from = upload(*device, delta, 50);
      device->add(to.matrix, from.matrix, 5, b);
      const std::vector<float> sums = download(*device, to.matrix, 5);
      for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], x[i] + (b ? delta[i] + b[i % 50] : delta[i]));
    }
  }
}

TEST(AddNorm, OfALayerNormGivesTheBitsOfTheTwoOps) {
  const std::vector<float> x = random_floats(5 * 50, 1), delta = random_floats(5 * 50, 2), vectors = random_floats(150, 3);
  const Norm norm = Norm::layer(&vectors[50], &vectors[100], 1e-5f);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const OwnedMatrix one = upload(*device, x, 50), two = upload(*device, x, 50), from = upload(*device, delta, 50);
    const OwnedMatrix fused = make_matrix(*device, Activation::kFloat32, 5, 50),
                      separate = make_matrix(*device, Activation::kFloat32, 5, 50);
    device->add_norm(one.matrix, from.matrix, 5, vectors.data(), norm, fused.matrix);
    device->add(two.matrix, from.matrix, 5, vectors.data());
    device->norm(two.matrix, 5, norm, separate.matrix);
    EXPECT_EQ(count_different(download(*device, one.matrix, 5), download(*device, two.matrix, 5)), 0u);
    EXPECT_EQ(count_different(download(*device, fused.matrix, 5), download(*device, separate.matrix, 5)), 0u);
  }
}

TEST(AddRmsNorm, GivesTheBitsOfTheTwoOps) {
  const std::vector<float> x = random_floats(5 * 64, 1), delta = random_floats(5 * 64, 2), bias = random_floats(64, 3),
                           weight = random_floats(64, 4);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const Activation type : {Activation::kFloat32, Activation::kInt8Blocks}) {
      const OwnedMatrix from = upload(*device, delta, 64), one = upload(*device, x, 64), two = upload(*device, x, 64);
      const OwnedMatrix fused = make_matrix(*device, type, 5, 64), separate = make_matrix(*device, type, 5, 64);
      device->add_norm(one.matrix, from.matrix, 5, bias.data(), Norm::rms(weight.data(), 1e-5f), fused.matrix);
      device->add(two.matrix, from.matrix, 5, bias.data());
      device->norm(two.matrix, 5, Norm::rms(weight.data(), 1e-5f), separate.matrix);
      EXPECT_EQ(count_different(download(*device, one.matrix, 5), download(*device, two.matrix, 5)), 0u);
      EXPECT_EQ(count_different(download(*device, fused.matrix, 5), download(*device, separate.matrix, 5)), 0u);
    }
  }
}

TEST(SelectLogitRows, CopiesTheRowsThatAreAskedFor) {
  const auto device = make_cpu_device({1});
  const std::vector<float> x = random_floats(5 * 3, 1);
  const OwnedMatrix from = upload(*device, x, 3), to = make_matrix(*device, Activation::kFloat32, 2, 3);
  StepBatch batch;
  batch.logit_rows = {4, 1};
  EXPECT_EQ(device->begin_step(batch).logits, 2u);
  device->select_logit_rows(from.matrix, to.matrix);
  EXPECT_EQ(download(*device, to.matrix, 2), (std::vector<float>{x[12], x[13], x[14], x[3], x[4], x[5]}));
}

TEST(TopOfRows, TheLowestIdWinsATieAndWhatIsNotFiniteIsReported) {
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const auto top = [&](const std::vector<float>& row) {
      const OwnedMatrix logits = upload(*device, row, row.size());
      Top found;
      device->top_of_rows(logits.matrix, 1);
      device->read_tops(std::span(&found, 1));
      return found;
    };
    for (const std::size_t n : {1, 15, 16, 97, 257}) {
      for (std::size_t at = 0; at < n; ++at) {
        std::vector<float> row = random_floats(n, 1);
        row[at] = 2.0f;
        EXPECT_EQ(top(row).id, static_cast<std::int32_t>(at));
        EXPECT_EQ(top(row).logit, 2.0f);
        EXPECT_TRUE(top(row).finite);
        row[n - 1 - at / 2] = 2.0f;
        EXPECT_EQ(top(row).id, static_cast<std::int32_t>(std::min(at, n - 1 - at / 2)));
        for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
          row = random_floats(n, 1);
          row[at] = bad;
          EXPECT_FALSE(top(row).finite);
          if (bad > 0) {
            EXPECT_EQ(top(row).id, static_cast<std::int32_t>(at));
          }
          if (bad < 0 && n > 1) {
            EXPECT_NE(top(row).id, static_cast<std::int32_t>(at));
          }
        }
      }
      EXPECT_EQ(top(std::vector<float>(n, -5.0f)).id, 0);
      EXPECT_EQ(top(std::vector<float>(n, -INFINITY)).id, 0);
    }
    std::vector<float> zeros(40, -1.0f);
    zeros[21] = -0.0f;
    zeros[35] = 0.0f;
    EXPECT_EQ(top(zeros).id, 21);  // zeros of both signs are equal
  }
}

TEST(TopOfRows, ARowOfNoColumnsHasNone) {
  const auto device = make_cpu_device({1});
  const OwnedMatrix logits = make_matrix(*device, Activation::kFloat32, 1, 0);
  Top found;
  device->top_of_rows(logits.matrix, 1);
  device->read_tops(std::span(&found, 1));
  EXPECT_EQ(found.id, -1);
  EXPECT_TRUE(found.finite);
}

TEST(Exponential, IsWithinTwoUnitsInTheLastPlaceAndTheSameEverywhere) {
  std::vector<float> x;
  for (int i = 0; i <= 2'000'000; ++i) x.push_back(-104.5f + 193.5f * static_cast<float>(i) / 2'000'000.0f);
  for (const float special : {0.0f, -0.0f, 1e-30f, -1e-30f, 88.7228f, 88.73f, 1e30f, -1e30f, INFINITY, -INFINITY, std::nanf("")})
    x.push_back(special);
  std::vector<float> expected(x.size());
  cpu::portable_kernels().exponentials(x.data(), x.size(), expected.data());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(expected[i]));
    } else if (static_cast<float>(exact) == INFINITY) {
      EXPECT_EQ(expected[i], INFINITY) << x[i];
    } else {
      const float near = std::max(static_cast<float>(exact), 1.17549435e-38f);
      const double unit = double{std::nextafter(near, INFINITY)} - double{near};
      worst = std::max(worst, std::fabs(double{expected[i]} - exact) / unit);
    }
  }
  EXPECT_LE(worst, 2.0);
  std::printf("exp: at most %.3f ulp from the exact value\n", worst);
  for (const Isa isa : supported_isas()) {
    std::vector<float> values(x.size());
    cpu::kernels_for(isa).exponentials(x.data(), x.size(), values.data());
    EXPECT_EQ(count_different(values, expected), 0u) << isa_name(isa);
  }
}

TEST(HalfConversion, EveryHalfAndEveryRoundingIsTheSameForVectorsAndScalars) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> x;
  for (const std::uint16_t half : halves) x.push_back(half_to_float(half));
  for (std::uint32_t i = 0; i < 2'000'000; ++i) {  // all of the range, with neighbours of the ties
    const std::uint32_t pattern = i * 2147u + (i % 3) - 1;
    float value;
    std::memcpy(&value, &pattern, 4);
    x.push_back(value);
  }
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {  // exactly between two halves
    x.push_back(
        (half_to_float(static_cast<std::uint16_t>(half)) + std::min(half_to_float(static_cast<std::uint16_t>(half + 1)), 65536.0f)) / 2);
    x.push_back(-x.back());
  }
  for (const Isa isa : supported_isas()) {
    const cpu::Kernels& kernels = cpu::kernels_for(isa);
    std::vector<float> expanded(halves.size());
    kernels.from_half(halves.data(), halves.size(), expanded.data());
    for (std::size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(bits(expanded[i]), bits(x[i])) << isa_name(isa) << " half " << i;
    std::vector<std::uint16_t> as_half(x.size()), as_bfloat16(x.size());
    kernels.to_half(x.data(), x.size(), as_half.data());
    kernels.to_bfloat16(x.data(), x.size(), as_bfloat16.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(as_half[i], float_to_half(x[i])) << isa_name(isa) << " " << std::hexfloat << x[i] << " " << std::hex << bits(x[i]);
      ASSERT_EQ(as_bfloat16[i], float_to_bfloat16(x[i])) << isa_name(isa) << " " << std::hex << bits(x[i]);
    }
  }
}

TEST(HalfConversion, RoundsToTheNearestHalf) {
  for (std::uint32_t half = 0; half < 0x7C00; ++half) EXPECT_EQ(float_to_half(half_to_float(static_cast<std::uint16_t>(half))), half);
  EXPECT_EQ(float_to_half(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(1.0f + 1.0f / 2048), 0x3C00);  // a tie goes to the even one
  EXPECT_EQ(float_to_half(1.0f + 3.0f / 2048), 0x3C02);
}

}  // namespace
}  // namespace lockstep::device
