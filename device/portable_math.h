#pragma once

namespace lockstep::device::portable {

/// Elementary functions in double precision over +, *, / and std::fma only: the same bits with every C library, compiler and processor
/// (docs/numerics.md, N4). Host code for tables and sampling; the vector kernels have their own. Subnormal results are kept. Compile with
/// -ffp-contract=off. The bounds are tested in tests/device/portable_math_test.cpp.

double exp(double x);               // <= 1 ulp; 0 below -746, infinity above 710
double log(double x);               // <= 1 ulp; -infinity for 0, NaN below
double pow(double base, double y);  // <= 1 ulp over the whole range; the special cases are those of IEEE 754
double sin(double x);               // |x| <= 1e7: <= 1 ulp, next to a zero too; NaN for what is not finite
double cos(double x);

}  // namespace lockstep::device::portable
