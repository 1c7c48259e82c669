#include "device/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace lockstep::device::portable {
namespace {

/// high + low, |low| at most half a unit of high: about 106 bits.
struct DoubleDouble {
  double high;
  double low;
};

DoubleDouble two_sum(double a, double b) {
  const double sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}
DoubleDouble fast_two_sum(double a, double b) {  // |a| >= |b|
  const double sum = a + b;
  return {sum, b - (sum - a)};
}
DoubleDouble multiply(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  return fast_two_sum(product, std::fma(a.high, b.high, -product) + (a.high * b.low + a.low * b.high));
}
DoubleDouble add(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble sum = two_sum(a.high, b.high);
  return fast_two_sum(sum.high, sum.low + (a.low + b.low));
}

constexpr double kLn2High = 0x1.62e42fefa39efp-1;
constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
constexpr double kRound = 0x1.8p52;  // adding and taking away rounds to an integer

/// 2^exponent * x in two factors, so that subnormal results are rounded once.
double scale(double x, int exponent) {
  const auto power = [](int n) { return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52); };
  const int half = exponent / 2;
  return x * power(half) * power(exponent - half);
}

/// e^(high + low).
double exp_of(DoubleDouble x) {
  if (std::isnan(x.high)) return x.high;
  if (x.high > 710.0) return std::numeric_limits<double>::infinity();
  if (x.high < -746.0) return 0.0;
  const double n = std::fma(x.high, 1.4426950408889634, kRound) - kRound;
  const double reduced = std::fma(-n, kLn2High, x.high);
  const double correction = std::fma(-n, kLn2Low, x.low);
  const double r = reduced + correction, lost = (reduced - r) + correction;
  double p = 1.0 / 6227020800.0;
  for (const double factorial : {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0}) {
    p = std::fma(p, r, 1.0 / factorial);
  }
  const double tail = std::fma(r * r, p, lost);  // e^r = 1 + r + r^2 p; the largest parts come last
  return scale(1.0 + (r + tail), static_cast<int>(n));
}

/// x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)). @pre x is positive and finite.
struct Split {
  double f;
  int exponent;
};
Split split(double x) {
  int exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  return {m - 1.0, exponent};
}

/// log(x) to about 100 bits relative to its larger parts. With s = f / (2 + f): log(1 + f) = 2 s + 2 s^3 / 3 + 2 s^5 / 5 + ...
DoubleDouble log_of(double x) {
  const auto [f, exponent] = split(x);
  const DoubleDouble divisor = two_sum(2.0, f);
  const double s_high = f / divisor.high;
  const double rest = std::fma(-s_high, divisor.high, f) - s_high * divisor.low;
  const DoubleDouble s = fast_two_sum(s_high, rest / divisor.high);
  const DoubleDouble square = multiply(s, s), cube = multiply(square, s);
  const double z = square.high;
  double series = 2.0 / 25.0;
  for (const double odd : {23.0, 21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0}) series = std::fma(series, z, 2.0 / odd);
  // 2/3 and 2/5 in two parts each; from 2/7 on a double is enough.
  const DoubleDouble fifth = add({0.4, -0x1.999999999999ap-56}, {series * z, 0.0});
  const DoubleDouble third = add({0x1.5555555555555p-1, 0x1.5555555555555p-55}, multiply(fifth, square));
  const DoubleDouble fraction = add({2.0 * s.high, 2.0 * s.low}, multiply(third, cube));
  const double n = exponent;
  const double product = n * kLn2High;
  return add({product, std::fma(n, kLn2High, -product) + n * kLn2Low}, fraction);
}

bool is_integer(double y) { return std::fabs(y) >= 0x1p53 || y == static_cast<double>(static_cast<std::int64_t>(y)); }
bool is_odd(double y) { return std::fabs(y) < 0x1p53 && is_integer(y) && static_cast<std::int64_t>(y) % 2 != 0; }

/// x - n * pi/2 for the nearest n, in two parts, and n modulo 4. Exact to about 100 bits for |x| up to 1e7: n * (the first 53 bits of pi/2)
/// leaves no rounding.
struct Reduced {
  DoubleDouble r;
  int quarter;
};
Reduced reduce(double x) {
  const double n = std::fma(x, 0.63661977236758134308, kRound) - kRound;
  const double first = std::fma(-n, 0x1.921fb54442d18p+0, x);
  const double second = n * 0x1.1a62633145c07p-54;
  const double second_low = std::fma(n, 0x1.1a62633145c07p-54, -second);
  const DoubleDouble r = two_sum(first, -second);
  return {fast_two_sum(r.high, r.low - (second_low + n * -0x1.f1976b7ed8fbcp-110)), static_cast<int>(static_cast<std::int64_t>(n) & 3)};
}

double sin_reduced(DoubleDouble r) {
  const double z = r.high * r.high;
  double p = 1.0 / 355687428096000.0;
  for (const double factorial : {-1307674368000.0, 6227020800.0, -39916800.0, 362880.0, -5040.0, 120.0, -6.0})
    p = std::fma(p, z, 1.0 / factorial);
  return r.high + std::fma(r.high * z, p, r.low * (1.0 - 0.5 * z));
}
double cos_reduced(DoubleDouble r) {
  const double z = r.high * r.high;
  double p = 1.0 / 20922789888000.0;
  for (const double factorial : {-87178291200.0, 479001600.0, -3628800.0, 40320.0, -720.0, 24.0}) p = std::fma(p, z, 1.0 / factorial);
  const double half = 0.5 * z, w = 1.0 - half;
  return w + (((1.0 - w) - half) + std::fma(z * z, p, -r.high * r.low));
}

}  // namespace

double exp(double x) { return exp_of(DoubleDouble{x, 0.0}); }

/// The natural logarithm: -infinity of 0, NaN of what is below.
double log(double x) {
  if (std::isnan(x) || x == std::numeric_limits<double>::infinity()) return x;
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  if (x < 0.0) return std::numeric_limits<double>::quiet_NaN();
  const DoubleDouble value = log_of(x);
  return value.high + value.low;
}

/// x^y with the special cases of IEEE 754.
double pow(double x, double y) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (y == 0.0 || x == 1.0) return 1.0;
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = std::fabs(x);
  const bool negative = std::signbit(x) && is_odd(y);
  if (std::fabs(y) == kInfinity) {
    if (magnitude == 1.0) return 1.0;
    return (magnitude > 1.0) == (y > 0) ? kInfinity : 0.0;
  }
  if (magnitude == 0.0 || magnitude == kInfinity) {
    const double value = (magnitude == 0.0) == (y > 0) ? 0.0 : kInfinity;
    return negative ? -value : value;
  }
  if (x < 0.0 && !is_integer(y)) return std::numeric_limits<double>::quiet_NaN();
  const DoubleDouble logarithm = log_of(magnitude);
  if (std::fabs(y) * std::fabs(logarithm.high) > 1e4) {  // far outside the range: the product below might overflow
    const double value = (logarithm.high > 0) == (y > 0) ? kInfinity : 0.0;
    return negative ? -value : value;
  }
  const double value = exp_of(multiply(logarithm, {y, 0.0}));
  return negative ? -value : value;
}

/// For |x| up to 1e7 to about one unit in the last place; beyond, the absolute error grows with x. NaN of what is not finite.
double sin(double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0.0) return x;
  const Reduced reduced = reduce(x);
  const double value = reduced.quarter & 1 ? cos_reduced(reduced.r) : sin_reduced(reduced.r);
  return reduced.quarter & 2 ? -value : value;
}

double cos(double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  const Reduced reduced = reduce(x);
  const double value = reduced.quarter & 1 ? sin_reduced(reduced.r) : cos_reduced(reduced.r);
  return ((reduced.quarter + 1) & 2) != 0 ? -value : value;
}

}  // namespace lockstep::device::portable
