#pragma once

#include "device/cuda/kernels/rows.cuh"

/// What is done to rows of floats in place. The bits are those of the CPU device.
namespace lockstep::device::cuda {

/// Grid (rows, pieces). x *= factor, or, where there are gates, x row *= sigmoid(gate of the row). Bytes: 8 n a row. Operations: n.
template <class Float>
__global__ void __launch_bounds__(kRowThreads)
    scale_rows(MutableRows<Float> x, const Float* gates, Float factor, unsigned columns, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  if (gates != nullptr) factor = 1.0f / (1.0f + exp_of(0.0f - gates[blockIdx.x]));
  float v[4];
  load_four(x.row(blockIdx.x), at, columns, aligned, v);
  for (unsigned i = 0; i < 4; ++i) v[i] = v[i] * factor;
  store_four(x.row(blockIdx.x), at, columns, aligned, v);
}

/// Grid (rows, pieces). x = cap * tanh(x / cap). Bytes: 8 n a row. Operations: about 24 n.
template <class Float>
__global__ void __launch_bounds__(kRowThreads) soft_cap_rows(MutableRows<Float> x, Float cap, unsigned columns, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  float v[4];
  load_four(x.row(blockIdx.x), at, columns, aligned, v);
  for (unsigned i = 0; i < 4; ++i) v[i] = cap * tanh_of(v[i] / cap);
  store_four(x.row(blockIdx.x), at, columns, aligned, v);
}

/// Grid (rows, heads). The norm of each head; arguments.columns is the size of a head. Bytes: 8 n a row, the second reads from L1.
template <Norm::Kind kKind>
__global__ void __launch_bounds__(kRowThreads) norm_heads_kernel(NormArguments arguments) {
  float* head = arguments.x.row(blockIdx.x) + blockIdx.y * arguments.columns;
  norm_row<kKind>(arguments, head, nullptr, head);
}

/// Grid (rows, heads). The square sum of each head. Bytes: 4 n a row.
template <class Float>
__global__ void __launch_bounds__(kRowThreads) square_heads_kernel(ConstRows<Float> x, unsigned head_dim, bool aligned, Float* out) {
  const float* head = x.row(blockIdx.x) + blockIdx.y * head_dim;
  const float sum = sum_deviations<float>(head, 0.0f, head_dim, aligned);
  if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/// Grid (rows, pieces). x = x / sqrt(square / norm_columns + eps) * weight. Bytes: 12 n a row. Operations: 2 n.
template <class Float>
__global__ void __launch_bounds__(kRowThreads) norm_by_square_rows(MutableRows<Float> x, unsigned columns, const Float* squares,
                                                                   Float norm_columns, const Float* weight, Float eps, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  const float inverse = 1.0f / sqrtf(squares[blockIdx.x] / norm_columns + eps);
  float v[4], w[4];
  load_four(x.row(blockIdx.x), at, columns, aligned, v);
  load_four(weight, at, columns, aligned, w);
  for (unsigned i = 0; i < 4; ++i) v[i] = (v[i] * inverse) * w[i];
  store_four(x.row(blockIdx.x), at, columns, aligned, v);
}

}  // namespace lockstep::device::cuda
