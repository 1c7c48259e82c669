#pragma once

namespace lockstep::device::portable {

/// Elementary functions in double precision over fused multiply-add only: the same bits with every libm, compiler and processor (docs/numerics.md, N4). Host code
/// for tables and sampling; the vector kernels have their own. Denormal results are flushed nowhere.

double exp(double x);               // <= 1 ulp; 0 below -745.2, infinity above 709.8
double log(double x);               // <= 2 ulp; -infinity for 0, NaN below
double pow(double base, double y);  // base > 0: exp(y log(base)), relative error <= 2^-52 (2 + |y log(base)|)
double sin(double x);               // |x| <= 1e7: <= 2 ulp, absolute error <= 2^-52 next to a zero
double cos(double x);

}  // namespace lockstep::device::portable
