#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "device/cuda/kernels/rows.cuh"
#include "device/cuda/views.h"

/// What launches of kernels on rows share.
namespace lockstep::device::cuda {

inline bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

/// Every row begins, and ends, at 16 bytes (fp32) or at 8 (16-bit types, which go four at a time too).
inline bool is_aligned(const Rows& rows) { return is_aligned(rows.data) && rows.columns % 4 == 0 && rows.stride % 4 == 0; }

inline ConstRows<float> const_rows(const Rows& rows) { return {static_cast<const float*>(rows.data), rows.stride}; }

template <class Element>
MutableRows<Element> mutable_rows(const Rows& rows) {
  return {static_cast<Element*>(rows.data), rows.stride};
}

/// Calls `with` with a null pointer to the element type of `rows`.
template <class With>
void dispatch(Activation type, const With& with) {
  switch (type) {
    case Activation::kFloat32: return with(static_cast<float*>(nullptr));
    case Activation::kFloat16: return with(static_cast<__half*>(nullptr));
    case Activation::kBFloat16: return with(static_cast<__nv_bfloat16*>(nullptr));
    case Activation::kInt8Blocks: break;
  }
  throw std::invalid_argument("the CUDA device has no activations of type " + std::string(name_of(type)));
}

/// dispatch, for norms: `with` has the kind as its template argument.
template <class With>
void dispatch_norm(Norm::Kind kind, Activation type, const With& with) {
  dispatch(type, [&](auto* element) {
    if (kind == Norm::Kind::kRms) return with.template operator()<Norm::Kind::kRms>(element);
    with.template operator()<Norm::Kind::kLayer>(element);
  });
}

/// x += delta (+ bias) if there is a delta; then the norm of x to `out`.
inline NormArguments norm_arguments(const Rows& x, const Rows* delta, const float* bias, const Norm& norm, const Rows& out) {
  const bool aligned = is_aligned(x) && (delta == nullptr || is_aligned(*delta)) && is_aligned(bias) && is_aligned(norm.weight) &&
                       is_aligned(norm.bias) && is_aligned(out);
  return {mutable_rows<float>(x),
          delta == nullptr ? ConstRows<float>{nullptr, 0} : const_rows(*delta),
          bias,
          norm.weight,
          norm.bias,
          norm.eps,
          static_cast<unsigned>(x.columns),
          aligned};
}

}  // namespace lockstep::device::cuda
