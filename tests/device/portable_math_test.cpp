#include "device/portable_math.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace lockstep::device {
namespace {

// long double has 64 bits of mantissa here: 11 more than what is tested.
double units_from(double value, long double exact) {
  const double near = static_cast<double>(exact);
  if (std::isinf(near) || std::isinf(value)) return value == near ? 0 : 1e9;
  const double unit = std::max(std::nextafter(std::fabs(near), INFINITY) - std::fabs(near), 0x1p-1074);
  return static_cast<double>(std::fabs((static_cast<long double>(value) - exact) / unit));
}

class Worst {
 public:
  void see(double value, long double exact, double at) {
    const double units = units_from(value, exact);
    if (units > units_) {
      units_ = units;
      at_ = at;
    }
  }
  void expect_below(double bound, const char* name) const {
    EXPECT_LE(units_, bound) << name << " at " << std::hexfloat << at_;
    std::printf("%s: at most %.3f ulp from the exact value\n", name, units_);
  }

 private:
  double units_ = 0, at_ = 0;
};

TEST(PortableMath, ExpIsWithinOneUnitInTheLastPlace) {
  std::mt19937_64 generator(1);
  Worst worst;
  std::uniform_real_distribution<double> wide(-745.2, 709.9), narrow(-1, 1);
  for (int i = 0; i < 1'000'000; ++i) {
    for (const double x : {wide(generator), narrow(generator)}) worst.see(portable::exp(x), std::exp(static_cast<long double>(x)), x);
  }
  worst.expect_below(1.0, "exp");
  EXPECT_EQ(portable::exp(0.0), 1.0);
  EXPECT_EQ(portable::exp(-INFINITY), 0.0);
  EXPECT_EQ(portable::exp(INFINITY), INFINITY);
  EXPECT_EQ(portable::exp(710.0), INFINITY);
  EXPECT_TRUE(std::isnan(portable::exp(std::nan(""))));
}

TEST(PortableMath, LogIsWithinOneUnitInTheLastPlace) {
  std::mt19937_64 generator(2);
  Worst worst;
  std::uniform_real_distribution<double> exponent(-1074, 1023), near_one(0.5, 2);
  for (int i = 0; i < 1'000'000; ++i) {
    for (const double x : {std::exp2(exponent(generator)), near_one(generator), 1.0 + 1e-6 * (near_one(generator) - 1)}) {
      if (x > 0) worst.see(portable::log(x), std::log(static_cast<long double>(x)), x);
    }
  }
  worst.expect_below(1.0, "log");
  EXPECT_EQ(portable::log(1.0), 0.0);
  EXPECT_EQ(portable::log(0.0), -INFINITY);
  EXPECT_EQ(portable::log(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(portable::log(-1.0)));
}

TEST(PortableMath, PowIsWithinTwoUnitsInTheLastPlace) {
  std::mt19937_64 generator(3);
  Worst worst, rotary;
  std::uniform_real_distribution<double> base(1e-3, 1e3), power(-100, 100), fraction(0, 1);
  for (int i = 0; i < 500'000; ++i) {
    const double x = base(generator), y = power(generator);
    const long double exact = std::pow(static_cast<long double>(x), static_cast<long double>(y));
    if (exact > 1e-300L && exact < 1e300L) worst.see(portable::pow(x, y), exact, x);
    for (const double theta : {10000.0, 500000.0, 1000000.0}) {
      const double e = -fraction(generator);
      rotary.see(portable::pow(theta, e), std::pow(static_cast<long double>(theta), static_cast<long double>(e)), e);
    }
  }
  worst.expect_below(2.0, "pow");
  rotary.expect_below(1.0, "pow of rotary bases");
  EXPECT_EQ(portable::pow(10.0, 2.0), 100.0);
  EXPECT_EQ(portable::pow(2.0, -3.0), 0.125);
  EXPECT_EQ(portable::pow(10000.0, 0.0), 1.0);
}

TEST(PortableMath, PowKnowsTheSpecialCases) {
  const double values[] = {0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e300, -1e300, INFINITY, -INFINITY, std::nan("")};
  for (const double x : values) {
    for (const double y : values) {
      const double expected = std::pow(x, y), value = portable::pow(x, y);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << x << " ^ " << y;
      } else {
        EXPECT_TRUE(value == expected || std::fabs(value - expected) <= 1e-15 * std::fabs(expected)) << x << " ^ " << y << ": " << value;
        EXPECT_EQ(std::signbit(value), std::signbit(expected)) << x << " ^ " << y;
      }
    }
  }
}

TEST(PortableMath, SinAndCosAreWithinTwoUnitsInTheLastPlaceUpToTenMillion) {
  std::mt19937_64 generator(4);
  Worst sine, cosine;
  std::uniform_real_distribution<double> narrow(-10, 10), wide(-1e7, 1e7);
  const auto see = [&](double x) {
    const long double exact_sine = std::sin(static_cast<long double>(x)), exact_cosine = std::cos(static_cast<long double>(x));
    sine.see(portable::sin(x), exact_sine, x);
    cosine.see(portable::cos(x), exact_cosine, x);
  };
  for (int i = 0; i < 500'000; ++i) {
    see(narrow(generator));
    see(wide(generator));
  }
  for (int i = 0; i < 100'000; ++i) see(i);                                            // positions
  for (int i = 1; i < 100'000; ++i) see(static_cast<double>(i) * 1.5707963267948966);  // next to multiples of pi/2
  sine.expect_below(2.0, "sin");
  cosine.expect_below(2.0, "cos");
  EXPECT_EQ(portable::sin(0.0), 0.0);
  EXPECT_EQ(portable::cos(0.0), 1.0);
  EXPECT_TRUE(std::isnan(portable::sin(INFINITY)));
  EXPECT_TRUE(std::isnan(portable::cos(std::nan(""))));
}

TEST(PortableMath, GivesTheBitsThatWereRecorded) {
  // Recorded once: a compiler that fuses or reorders would change some.
  EXPECT_EQ(portable::exp(1.0), 0x1.5bf0a8b145769p+1);
  EXPECT_EQ(portable::log(10.0), 0x1.26bb1bbb55516p+1);
  EXPECT_EQ(portable::sin(1.0), 0x1.aed548f090ceep-1);
  EXPECT_EQ(portable::cos(1.0), 0x1.14a280fb5068cp-1);
  EXPECT_EQ(portable::pow(10000.0, -0.25), 0.1);
}

}  // namespace
}  // namespace lockstep::device
