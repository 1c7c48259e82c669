#include "device/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep::device::portable {
namespace {

constexpr double kLn2High = 0x1.62e42fefa38p-1;   // 43 bits: k * kLn2High is exact for |k| < 1024
constexpr double kLn2Low = 0x1.ef35793c7673p-45;
constexpr double kHalfPi[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};

/// Sum of coefficients[i] x^i.
template <int N>
double polynomial(double x, const double (&coefficients)[N]) {
  double sum = coefficients[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = std::fma(sum, x, coefficients[i]);
  return sum;
}

/// sin(r) and cos(r) for |r| <= pi/4, by their Taylor series.
double sin_near_zero(double r) {
  static constexpr double kTerms[] = {-1.0 / 6,          1.0 / 120,           -1.0 / 5040,          1.0 / 362880,
                                      -1.0 / 39916800,   1.0 / 6227020800.0,  -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
  const double square = r * r;
  return std::fma(r * square, polynomial(square, kTerms), r);
}

double cos_near_zero(double r) {
  static constexpr double kTerms[] = {1.0 / 24,         -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
                                      1.0 / 479001600,  -1.0 / 87178291200.0, 1.0 / 20922789888000.0, -1.0 / 6402373705728000.0};
  const double square = r * r;
  const double half = 0.5 * square;
  const double rounded = 1.0 - half;
  return rounded + std::fma(square * square, polynomial(square, kTerms), (1.0 - rounded) - half);
}

/// x = n pi/2 + r.
std::int64_t reduce(double x, double& r) {
  const double n = std::nearbyint(x * 0x1.45f306dc9c883p-1);
  r = std::fma(-n, kHalfPi[0], x);
  r = std::fma(-n, kHalfPi[1], r);
  r = std::fma(-n, kHalfPi[2], r);
  return static_cast<std::int64_t>(n);
}

double quadrant(std::int64_t n, double r) {
  switch (n & 3) {
    case 0: return sin_near_zero(r);
    case 1: return cos_near_zero(r);
    case 2: return -sin_near_zero(r);
    default: return -cos_near_zero(r);
  }
}

}  // namespace

double exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.79) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0.0;
  static constexpr double kTerms[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,         1.0 / 120,        1.0 / 720,          1.0 / 5040,
                                      1.0 / 40320,   1.0 / 362880,   1.0 / 3628800,    1.0 / 39916800,   1.0 / 479001600,    1.0 / 6227020800.0};
  const double k = std::nearbyint(x * 0x1.71547652b82fep+0);
  const double high = std::fma(-k, kLn2High, x);
  const double r = std::fma(-k, kLn2Low, high);
  const double error = std::fma(-k, kLn2Low, high - r);  // what rounding took from r
  const double value = 1.0 + (r + std::fma(r * r, polynomial(r, kTerms), error));
  return std::ldexp(value, static_cast<int>(k));
}

double log(double x) {
  if (std::isnan(x) || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (std::isinf(x)) return x;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [1/2, 1)
  if (mantissa < 0x1.6a09e667f3bcdp-1) {
    mantissa *= 2;
    --exponent;
  }
  // With f = m - 1 and s = f / (2 + f): log(1 + f) = f - f^2/2 + s (f^2/2 + 2 s^2 (1/3 + s^2/5 + ...)).
  static constexpr double kTerms[] = {2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  const double f = mantissa - 1.0;
  const double s = f / (2.0 + f);
  const double square = s * s;
  const double half = 0.5 * f * f;
  const double tail = s * (half + square * polynomial(square, kTerms));
  const double k = exponent;
  return std::fma(k, kLn2High, f - (half - std::fma(k, kLn2Low, tail)));
}

double pow(double base, double y) { return exp(y * log(base)); }

double sin(double x) {
  double r;
  const std::int64_t n = reduce(x, r);
  return quadrant(n, r);
}

double cos(double x) {
  double r;
  const std::int64_t n = reduce(x, r);
  return quadrant(n + 1, r);
}

}  // namespace lockstep::device::portable
