#include "device/portable_math.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace lockstep::device::portable {
namespace {

/// Distance of `got` from the long double reference, in units of the last place of a double there.
double ulps(double got, long double expected) {
  const double rounded = static_cast<double>(expected);
  const double unit = std::nextafter(std::fabs(rounded), std::numeric_limits<double>::infinity()) - std::fabs(rounded);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - expected) / static_cast<long double>(unit));
}

template <class Function, class Reference>
double worst(double low, double high, Function function, Reference reference) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(low, high);
  double largest = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = uniform(random);
    largest = std::max(largest, ulps(function(x), reference(static_cast<long double>(x))));
  }
  return largest;
}

TEST(PortableMath, ExpIsWithinOneUlp) {
  EXPECT_LE(worst(-700, 700, exp, [](long double x) { return std::exp(x); }), 1.0);
  EXPECT_LE(worst(-1, 1, exp, [](long double x) { return std::exp(x); }), 1.0);
  EXPECT_EQ(exp(0.0), 1.0);
  EXPECT_EQ(exp(-800.0), 0.0);
  EXPECT_EQ(exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_TRUE(std::isinf(exp(710.0)));
  EXPECT_TRUE(std::isnan(exp(std::nan(""))));
}

TEST(PortableMath, LogIsWithinTwoUlp) {
  EXPECT_LE(worst(1e-300, 1e-290, log, [](long double x) { return std::log(x); }), 2.0);
  EXPECT_LE(worst(0.5, 2, log, [](long double x) { return std::log(x); }), 2.0);
  EXPECT_LE(worst(1, 1e9, log, [](long double x) { return std::log(x); }), 2.0);
  EXPECT_EQ(log(1.0), 0.0);
  EXPECT_TRUE(std::isinf(log(0.0)) && log(0.0) < 0);
  EXPECT_TRUE(std::isnan(log(-1.0)));
}

TEST(PortableMath, PowIsWithinItsBound) {
  for (const double base : {10000.0, 100000.0, 5e5, 1e6}) {
    for (int i = 0; i <= 256; ++i) {
      const double y = i / 256.0;
      const long double expected = std::pow(static_cast<long double>(base), static_cast<long double>(y));
      const double bound = 0x1p-52 * (2 + y * std::log(base));
      EXPECT_LE(std::fabs(static_cast<double>((static_cast<long double>(pow(base, y)) - expected) / expected)), bound) << base << "^" << y;
    }
  }
}

TEST(PortableMath, SinAndCosAreAccurateUpToTenMillion) {
  std::mt19937_64 random(6);
  for (const double range : {0.8, 10.0, 1e4, 1e7}) {
    std::uniform_real_distribution<double> uniform(-range, range);
    double largest = 0;
    for (int i = 0; i < 200000; ++i) {
      const double x = uniform(random);
      largest = std::max(largest, static_cast<double>(std::fabs(static_cast<long double>(sin(x)) - std::sin(static_cast<long double>(x)))));
      largest = std::max(largest, static_cast<double>(std::fabs(static_cast<long double>(cos(x)) - std::cos(static_cast<long double>(x)))));
    }
    EXPECT_LE(largest, 0x1p-52) << range;
  }
  EXPECT_EQ(sin(0.0), 0.0);
  EXPECT_EQ(cos(0.0), 1.0);
}

}  // namespace
}  // namespace lockstep::device::portable
