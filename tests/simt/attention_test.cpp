#include "device/cuda/attention.h"

#include <gtest/gtest.h>

#include "simt/simt.h"
#include "tests/simt/attention_scene.h"

namespace lockstep::device::cuda {
namespace {

using reference::count_different;

constexpr Activation kHalfTypes[] = {Activation::kBFloat16, Activation::kFloat16};
/// Keys of decode over many blocks, and no sharing out at all.
constexpr int kManyMultiprocessors = 64, kOneMultiprocessor = 0;

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }

  static void expect_equal(const Outputs& found, const Outputs& expected, const std::string& what) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(count_different(found[i], expected[i]), 0u) << what << ", sequence " << i;
  }
};

float largest_difference(const Outputs& found, const Outputs& expected) {
  float largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (found.at(i).size() != expected[i].size()) return INFINITY;
    for (std::size_t at = 0; at < expected[i].size(); ++at) {
      const float difference = std::fabs(found[i][at] - expected[i][at]);
      largest = difference <= largest ? largest : difference;  // NaN is the largest
    }
  }
  return largest;
}

TEST_F(CudaAttention, InFloat32HasTheBitsOfTheCpuDevice) {
  const auto cpu = make_cpu_device({1});
  for (const Shape& shape :
       {Shape{8, 4, 0, 64, 16, DType::kF32, 0}, Shape{3, 1, 0, 20, 32, DType::kF16, 0}, Shape{6, 3, 0, 16, 48, DType::kBF16, 33},
        Shape{5, 5, 0, 80, 16, DType::kF16, 70}, Shape{5, 4, 2, 8, 16, DType::kF32, 5}, Shape{2, 1, 0, 128, 32, DType::kF32, 0},
        Shape{20, 20, 0, 7, 16, DType::kBF16, 0}, Shape{1, 1, 0, 256, 16, DType::kF16, 0},
        Shape{6, 3, 0, 16, 16, DType::kF32, 0, KvQuantisation::kNone, 2.5f},
        Shape{3, 1, 0, 24, 32, DType::kF32, 40, KvQuantisation::kNone, 0.0f, true},
        Shape{5, 4, 2, 20, 16, DType::kF16, 0, KvQuantisation::kNone, 4.0f, true},
        Shape{6, 3, 0, 16, 16, DType::kF32, 0, KvQuantisation::kNone, 0.0f, false, true},
        Shape{5, 4, 2, 20, 32, DType::kF16, 70, KvQuantisation::kNone, 4.0f, false, true},
        Shape{6, 3, 0, 64, 16, DType::kF32, 0, KvQuantisation::kInt8}, Shape{5, 4, 2, 20, 32, DType::kF32, 70, KvQuantisation::kInt8},
        Shape{6, 3, 0, 64, 16, DType::kF32, 0, KvQuantisation::kFloat8},
        Shape{8, 8, 0, 20, 32, DType::kF32, 70, KvQuantisation::kFloat8}}) {
    const Scene scene(shape, {1, 70, 150});
    const Outputs expected = run_on_cpu(scene, *cpu);
    expect_equal(run_on_gpu(scene, Activation::kFloat32, {.pads = 1}), expected, shape.name());
    expect_equal(run_on_gpu(scene, Activation::kFloat32, {.prefill = 145, .chunk = 1, .pads = 2, .multiprocessors = kManyMultiprocessors}),
                 expected, shape.name() + ", decode");
  }
}

TEST_F(CudaAttention, InFloat32DependsOnlyOnTheSequence) {
  const Scene scene({4, 2, 0, 16, 16, DType::kF32, 0}, {3, 140, 65});
  const Outputs expected = run_on_cpu(scene, *make_cpu_device({1}));
  for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
    simt::config().schedule = schedule;
    simt::config().shuffle_blocks = true;
    for (const Steps& steps : {Steps{.chunk = 7, .together = false}, Steps{.prefill = 63, .chunk = 64},
                               Steps{.prefill = 130, .chunk = 1, .max_context = 1000, .multiprocessors = kManyMultiprocessors},
                               Steps{.prefill = 130, .chunk = 1, .multiprocessors = kOneMultiprocessor}}) {
      expect_equal(run_on_gpu(scene, Activation::kFloat32, steps), expected, std::to_string(steps.chunk));
    }
  }
}

/// With u the unit roundoff of the type and values within 2, rounding p moves the result by at most u * 4, and rounding the output by u
/// * 2. Over random keys and values the former averages out to a fraction of u, so 2 u is what is asked for.
TEST_F(CudaAttention, In16BitsIsNearTheFormulaInDoublePrecision) {
  for (const std::size_t head_dim : {8, 20, 32, 64, 80, 128, 192}) {
    for (const std::size_t group : {1, 3, 4, 8}) {
      const Shape shape{group == 1 ? 2 : group,
                        group,
                        0,
                        head_dim,
                        group % 2 == 0 ? std::size_t{16} : std::size_t{32},
                        group == 3       ? DType::kF32
                        : head_dim == 32 ? DType::kF16
                                         : DType::kBF16,
                        group == 4 ? 70u : 0u};
      const Scene scene(shape, {1, group == 4 ? std::size_t{200} : std::size_t{75}});
      const Activation type = head_dim == 32 || group == 8 ? Activation::kFloat16 : Activation::kBFloat16;
      const float unit = type == Activation::kFloat16 ? 0x1p-11f : 0x1p-8f;
      const Outputs found = run_on_gpu(scene, type, {}), expected = attention_in_double(scene, type);
      EXPECT_LE(largest_difference(found, expected), 2 * unit) << shape.name();
    }
  }
}

TEST_F(CudaAttention, In16BitsWithCapsSlopesAndSinksIsNearTheFormulaAndDependsOnlyOnTheSequence) {
  for (const Shape& shape : {Shape{4, 2, 0, 64, 16, DType::kBF16, 0, KvQuantisation::kNone, 2.5f},
                             Shape{3, 3, 0, 24, 32, DType::kBF16, 70, KvQuantisation::kNone, 0.0f, true},
                             Shape{18, 18, 0, 16, 16, DType::kBF16, 0, KvQuantisation::kNone, 4.0f, true},
                             Shape{8, 8, 0, 64, 16, DType::kBF16, 0, KvQuantisation::kNone, 0.0f, false, true},
                             Shape{5, 4, 2, 24, 16, DType::kBF16, 70, KvQuantisation::kNone, 3.0f, false, true}}) {
    const Scene scene(shape, {3, 200});
    const Outputs found = run_on_gpu(scene, Activation::kBFloat16, {});
    EXPECT_LE(largest_difference(found, attention_in_double(scene, Activation::kBFloat16)), 2 * 0x1p-8f) << shape.name();
    expect_equal(run_on_gpu(scene, Activation::kBFloat16, {.prefill = 63, .chunk = 64, .pads = 2}), found, shape.name());
    expect_equal(run_on_gpu(scene, Activation::kBFloat16, {.prefill = 195, .chunk = 1, .multiprocessors = kManyMultiprocessors}), found,
                 shape.name());
  }
}

TEST_F(CudaAttention, In16BitsDependsOnlyOnTheSequence) {
  for (const Shape& shape :
       {Shape{4, 4, 0, 64, 16, DType::kBF16, 0}, Shape{5, 4, 2, 128, 32, DType::kF16, 90}, Shape{2, 2, 0, 24, 16, DType::kF32, 0},
        Shape{18, 18, 0, 80, 16, DType::kBF16, 0}, Shape{1, 1, 0, 136, 16, DType::kBF16, 0}}) {
    const Scene scene(shape, {3, 270, 65});
    const Activation type = shape.cache == DType::kF16 ? Activation::kFloat16 : Activation::kBFloat16;
    const Outputs expected = run_on_gpu(scene, type, {});
    for (const Steps& steps : {Steps{.prefill = 100, .chunk = 37, .together = false}, Steps{.prefill = 63, .chunk = 64, .pads = 2},
                               Steps{.prefill = 262, .chunk = 1, .pads = 1, .max_context = 2000, .multiprocessors = kManyMultiprocessors},
                               Steps{.prefill = 265, .chunk = 1, .together = false, .multiprocessors = kOneMultiprocessor}}) {
      expect_equal(run_on_gpu(scene, type, steps), expected, shape.name() + ", chunks of " + std::to_string(steps.chunk));
    }
  }
}

TEST_F(CudaAttention, ManySequencesOfUnevenLengthsDoNotMixUp) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 40; ++i) lengths.push_back(i == 33 ? 150 : i * 7 % 30 + 1);
  const Scene scene({2, 2, 0, 16, 16, DType::kBF16, 0}, lengths);
  const Outputs expected = run_on_gpu(scene, Activation::kBFloat16, {.together = false});
  expect_equal(run_on_gpu(scene, Activation::kBFloat16, {.pads = 3}), expected, "in one step");
  expect_equal(run_on_gpu(scene, Activation::kBFloat16, {.prefill = 20, .chunk = 9}), expected, "in chunks");
}

TEST_F(CudaAttention, In16BitsIsTheSameUnderEverySchedule) {
  const Scene scene({4, 4, 0, 32, 16, DType::kBF16, 0}, {270, 40});
  for (const Activation type : kHalfTypes) {
    simt::config().schedule = simt::Schedule::kForward;
    const Outputs expected = run_on_gpu(scene, type, {});
    for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      simt::config().schedule = schedule;
      simt::config().shuffle_blocks = true;
      expect_equal(run_on_gpu(scene, type, {.prefill = 268, .chunk = 1, .multiprocessors = kManyMultiprocessors}), expected, "");
    }
  }
}

TEST_F(CudaAttention, AQuantisedCacheGivesTheNumbersOfItsDefinitionAndTheSameBitsInEveryStep) {
  for (const KvQuantisation quantised : {KvQuantisation::kFloat8, KvQuantisation::kInt8}) {
    for (const std::size_t head_dim : {20, 64}) {
      const Shape shape{4, 2, 0, head_dim, 32, DType::kF32, 0, quantised};
      Scene scene(shape, {1, 150});
      std::fill_n(scene.rows[0].begin() + static_cast<std::ptrdiff_t>(4 * head_dim), head_dim, 0.0f);  // a key of zeros
      for (const Activation type : {Activation::kFloat32, Activation::kBFloat16}) {
        const Outputs found = run_on_gpu(scene, type, {});
        EXPECT_LE(largest_difference(found, attention_in_double(scene, type)), type == Activation::kFloat32 ? 5e-6f : 0x1p-7f);
        expect_equal(run_on_gpu(scene, type, {.prefill = 145, .chunk = 1, .multiprocessors = kManyMultiprocessors}), found, shape.name());
        expect_equal(run_on_gpu(scene, type, {.prefill = 40, .chunk = 70, .together = false}), found, shape.name());
      }
    }
  }
}

TEST_F(CudaAttention, MatricesAreReadWithoutBankConflicts) {
  for (const std::size_t head_dim : {64, 128}) {
    run_on_gpu(Scene({4, 4, 0, head_dim, 16, DType::kBF16, 0}, {70}), Activation::kBFloat16, {.prefill = 69, .chunk = 1});
    EXPECT_GT(simt::counters().ldmatrix, 0u);
    EXPECT_EQ(simt::counters().ldmatrix_conflicts, 0u) << head_dim;
  }
}

TEST_F(CudaAttention, ASingleKeyGivesItsValue) {
  const Scene scene({4, 2, 0, 24, 16, DType::kF32, 0}, {1});
  for (const Activation type : {Activation::kFloat32, Activation::kFloat16, Activation::kBFloat16}) {
    const Outputs outputs = run_on_gpu(scene, type, {});
    for (std::size_t i = 0; i < 96; ++i) EXPECT_EQ(outputs[0][i], rounded(scene.rows[0][(4 + 2 + i / 48) * 24 + i % 24], type));
  }
}

TEST_F(CudaAttention, AWindowOfOneKeySeesItself) {
  const Scene scene({1, 1, 0, 16, 16, DType::kF32, 1}, {100});
  for (const Activation type : {Activation::kFloat32, Activation::kBFloat16}) {
    const Outputs outputs = run_on_gpu(scene, type, {});
    for (std::size_t t = 0; t < 100; ++t) EXPECT_EQ(outputs[0][t * 16], rounded(scene.rows[0][t * 48 + 32], type));
  }
}

TEST_F(CudaAttention, ANaNKeySpoilsOnlyTheQueriesThatSeeIt) {
  Scene scene({1, 1, 0, 16, 16, DType::kF32, 0}, {80});
  scene.rows[0][70 * 48 + 16] = std::nanf("");
  for (const Activation type : {Activation::kFloat32, Activation::kBFloat16}) {
    const Outputs outputs = run_on_gpu(scene, type, {});
    for (std::size_t t = 0; t < 80; ++t) EXPECT_EQ(std::isfinite(outputs[0][t * 16]), t < 70) << t;
  }
}

TEST_F(CudaAttention, ADecodeStepIsOneLaunchAndSpreadsItsKeys) {
  const Scene scene({4, 4, 0, 64, 16, DType::kBF16, 0}, {300});
  run_on_gpu(scene, Activation::kBFloat16, {.prefill = 299, .chunk = 1, .multiprocessors = kManyMultiprocessors});
  EXPECT_EQ(simt::counters().launches, 4u);  // two steps, each with the rotation and attention
}

TEST(CudaKvCacheTest, RefusesWhatTheKernelsDoNotHave) {
  EXPECT_THROW(CudaKvCache({1, 1, 24, 1, 16, DType::kF32}), std::invalid_argument);
  EXPECT_THROW(CudaKvCache({1, 1, 16, 1, 32, DType::kQ8_0}), std::invalid_argument);
  EXPECT_THROW(CudaKvCache({1, 1, 16, 1, 257, DType::kF16}), std::invalid_argument);
  EXPECT_THROW(CudaKvCache({1, 1, 16, 1, 0, DType::kF16}), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device::cuda
