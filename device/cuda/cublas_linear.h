#pragma once

#include <memory>

#include "device/cuda/linear.h"

/// Matrix products by cuBLASLt, for `--reduction fast` alone: the library chooses how a sum is cut, so an answer depends on the number of
/// tokens and on the library (docs/numerics.md, N8).
namespace lockstep::device::cuda {

/// A handle, a workspace and the algorithm for each shape that was seen. For the current device; used by one stream at a time.
class CublasLinear {
 public:
  /// @throws std::runtime_error where cuBLASLt can not start, CudaError where memory is short.
  CublasLinear();
  CublasLinear(const CublasLinear&) = delete;
  CublasLinear& operator=(const CublasLinear&) = delete;
  ~CublasLinear();

  /// As `linear` of linear.h: roots, bias, column of the output. Can be captured. The first product of a shape asks cuBLASLt's heuristics.
  /// @pre weight.plain() is not null. @throws std::invalid_argument for matrices that do not fit, std::runtime_error where cuBLASLt fails.
  void linear(const Launch& launch, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, Rows out,
              std::size_t out_column);

  std::size_t num_shapes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::device::cuda
