#include "engine/quantise/block_quantisers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/engine/weights/support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using device::DType;
using ::testing::HasSubstr;

/// Blocks of 256 of all kinds: bell-shaped, one-sided, with outliers, tiny, huge, constant, zero, of one value. The same on every machine.
std::vector<float> samples() {
  std::uint32_t state = 12345;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  };
  std::vector<float> values;
  const auto block = [&](const auto& make) {
    for (int i = 0; i < 256; ++i) values.push_back(make(i));
  };
  for (int round = 0; round < 8; ++round) block([&](int) { return 0.02f * (next() + next() + next() + next()); });
  block([&](int) { return std::fabs(next()); });
  block([&](int) { return -std::fabs(next()) - 0.5f; });
  block([&](int i) { return i % 50 == 7 ? 30.0f * next() : 0.1f * next(); });
  block([&](int i) { return i == 100 ? -3.0f : 0.0f; });
  block([&](int) { return 1e-7f * next(); });
  block([&](int) { return 3000.0f * next(); });
  block([&](int) { return 0.37f; });
  block([&](int) { return -0.37f; });
  block([&](int) { return 0.0f; });
  block([&](int i) { return i < 32 ? 5.0f * next() : 1e-4f * next(); });
  return values;
}

std::vector<float> round_trip(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(device::row_bytes(dtype, values.size()));
  quantise(dtype, values, bytes);
  std::vector<float> decoded(values.size());
  device::dequantise(dtype, bytes, decoded);
  return decoded;
}

double error_of_block(std::span<const float> values, std::span<const float> decoded) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += std::pow(static_cast<double>(decoded[i]) - values[i], 2);
  return sum;
}

/// The formats' reference rule: quants are rounded with the scale before that is rounded to F16.
std::vector<float> reference_q8_0(std::span<const float> values) {
  std::vector<float> decoded;
  for (std::size_t block = 0; block < values.size(); block += 32) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[block + i]));
    const float scale = largest / 127.0f;
    const float stored = device::half_to_float(device::float_to_half(scale));
    for (std::size_t i = 0; i < 32; ++i)
      decoded.push_back(stored * (scale == 0.0f ? 0.0f : std::round(values[block + i] * (1.0f / scale))));
  }
  return decoded;
}

std::vector<float> reference_q4_0(std::span<const float> values) {
  std::vector<float> decoded;
  for (std::size_t block = 0; block < values.size(); block += 32) {
    float extreme = 0.0f;
    for (std::size_t i = 0; i < 32; ++i) {
      if (std::fabs(values[block + i]) > std::fabs(extreme)) extreme = values[block + i];
    }
    const float scale = extreme / -8.0f;
    const float stored = device::half_to_float(device::float_to_half(scale));
    for (std::size_t i = 0; i < 32; ++i) {
      const float q = scale == 0.0f ? 8.0f : std::min(15.0f, std::floor(values[block + i] * (1.0f / scale) + 8.5f));
      decoded.push_back(stored * (q - 8.0f));
    }
  }
  return decoded;
}

/// A plain rule for super-blocks: each part from its smallest to its largest value, its scale rounded to six bits (Q4_K), or its largest
/// magnitude at the end of the range, its scale rounded to eight bits (Q6_K).
std::vector<float> plain_super_blocks(std::span<const float> values, bool q4) {
  const std::size_t part = q4 ? 32 : 16;
  std::vector<float> decoded;
  for (std::size_t block = 0; block < values.size(); block += 256) {
    std::vector<float> scales, minima;
    for (std::size_t begin = block; begin < block + 256; begin += part) {
      const auto [low, high] = std::minmax_element(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   values.begin() + static_cast<std::ptrdiff_t>(begin + part));
      minima.push_back(std::max(0.0f, -*low));
      scales.push_back(q4 ? (std::max(*high, 0.0f) + minima.back()) / 15.0f : std::max(std::fabs(*low), std::fabs(*high)) / 31.0f);
    }
    const auto unit = [](const std::vector<float>& of, float steps) {
      return device::half_to_float(device::float_to_half(*std::max_element(of.begin(), of.end()) / steps));
    };
    const float unit_scale = unit(scales, q4 ? 63.0f : 127.0f), unit_minimum = unit(minima, 63.0f);
    for (std::size_t i = 0; i < 256; ++i) {
      const float scale = unit_scale == 0.0f ? 0.0f : unit_scale * std::round(scales[i / part] / unit_scale);
      const float minimum = !q4 || unit_minimum == 0.0f ? 0.0f : unit_minimum * std::round(minima[i / part] / unit_minimum);
      const float q =
          scale == 0.0f ? 0.0f : std::clamp(std::round((values[block + i] + minimum) / scale), q4 ? 0.0f : -32.0f, q4 ? 15.0f : 31.0f);
      decoded.push_back(scale * q - minimum);
    }
  }
  return decoded;
}

TEST(BlockQuantisers, NoElementOfQ8_0OrQ4_0IsFurtherOffThanByTheReferenceRule) {
  const std::vector<float> values = samples();
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    const std::vector<float> found = round_trip(dtype, values);
    const std::vector<float> reference = dtype == DType::kQ8_0 ? reference_q8_0(values) : reference_q4_0(values);
    double total = 0.0, total_reference = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float error = std::fabs(found[i] - values[i]), allowed = std::fabs(reference[i] - values[i]);
      EXPECT_LE(error, allowed * 1.00001f) << device::info(dtype).name << ", element " << i << " of value " << values[i];
      total += static_cast<double>(error) * error;
      total_reference += static_cast<double>(allowed) * allowed;
    }
    EXPECT_GT(total, 0.0);
    EXPECT_LE(total, total_reference);
  }
}

TEST(BlockQuantisers, NoSuperBlockIsFurtherOffThanByAPlainRule) {
  const std::vector<float> values = samples();
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K}) {
    const std::vector<float> found = round_trip(dtype, values);
    const std::vector<float> plain = plain_super_blocks(values, dtype == DType::kQ4_K);
    double total = 0.0, total_plain = 0.0;
    for (std::size_t block = 0; block < values.size(); block += 256) {
      const auto part = [&](const std::vector<float>& of) { return std::span(of).subspan(block, 256); };
      const double error = error_of_block(part(values), part(found)), allowed = error_of_block(part(values), part(plain));
      const double size = error_of_block(part(values), std::vector<float>(256));
      EXPECT_LE(error, allowed + 1e-6 * size) << device::info(dtype).name << ", block " << block / 256;
      total += block < 8 * 256 ? error : 0.0;
      total_plain += block < 8 * 256 ? allowed : 0.0;
    }
    EXPECT_LT(total, 0.95 * total_plain) << device::info(dtype).name << ": the search pays on bell-shaped weights";
  }
}

TEST(BlockQuantisers, TheErrorOfBellShapedWeightsIsThatOfTheType) {
  std::vector<float> values = samples();
  values.resize(8 * 256);
  const double size = std::sqrt(error_of_block(values, std::vector<float>(values.size())));
  const auto relative = [&](DType dtype) { return std::sqrt(error_of_block(values, round_trip(dtype, values))) / size; };
  EXPECT_LT(relative(DType::kQ8_0), 0.006);
  EXPECT_LT(relative(DType::kQ6_K), 0.018);
  EXPECT_LT(relative(DType::kQ4_K), 0.07);
  EXPECT_LT(relative(DType::kQ4_0), 0.09);
  EXPECT_LT(relative(DType::kQ4_K), relative(DType::kQ4_0));
  EXPECT_EQ(relative(DType::kF32), 0.0);
  EXPECT_LT(relative(DType::kF16), 0.0003);
}

TEST(BlockQuantisers, WhatABlockHoldsComesBackAsItIs) {
  // Quants of all sizes times a scale that F16 holds.
  std::vector<float> values(64);
  for (std::size_t i = 0; i < 64; ++i) values[i] = 0.25f * static_cast<float>(static_cast<int>(i * 37 % 255) - 127);
  values[0] = values[32] = 0.25f * 127.0f;
  EXPECT_EQ(round_trip(DType::kQ8_0, values), values);
  for (std::size_t i = 0; i < 64; ++i) values[i] = 0.5f * static_cast<float>(static_cast<int>(i % 16) - 8);
  EXPECT_EQ(round_trip(DType::kQ4_0, values), values);
  const std::vector<float> zeros(256, 0.0f);
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) EXPECT_EQ(round_trip(dtype, zeros), zeros);
}

TEST(BlockQuantisers, ValuesThatNoBlockCanHoldAreRefused) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    std::vector<float> values(256, 1.0f);
    values[77] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(error_of([&] { round_trip(dtype, values); }), HasSubstr("not finite"));
    values[77] = 3e38f;
    EXPECT_THAT(error_of([&] { round_trip(dtype, values); }), HasSubstr("beyond the range of 16-bit floats"));
  }
}

}  // namespace
}  // namespace lockstep::engine
