#pragma once

#include "device/cuda/kernels/rows.cuh"
#include "device/device.h"

namespace lockstep::device::cuda {

constexpr unsigned kTopThreads = 512;

/// The best logit so far: the largest that is not NaN, and of equal ones (zeros of both signs are) that of the lowest id.
struct BestLogit {
  float value = 0.0f;
  int id = -1;

  __device__ void take(float other, int other_id) {
    if (other_id < 0 || other != other) return;
    if (id >= 0 && (other < value || (other == value && other_id > id))) return;
    value = other;
    id = other_id;
  }
};

/// A block a row. The order of comparing does not matter, so there is no rule for it. Bytes: 4 n a row. Operations: 3 n.
template <class Float>
__global__ void __launch_bounds__(kTopThreads) tops_of_rows(ConstRows<Float> logits, unsigned columns, bool aligned, Top* tops) {
  LOCKSTEP_SHARED(float[kTopThreads / 32], values);
  LOCKSTEP_SHARED(int[kTopThreads / 32], ids);
  LOCKSTEP_SHARED(int[kTopThreads / 32], finites);
  const float* row = logits.row(blockIdx.x);
  BestLogit best;
  bool finite = true;
  for (unsigned at = 4 * threadIdx.x; at < columns; at += 4 * kTopThreads) {
    float v[4];
    load_four(row, at, columns, aligned, v);
    for (unsigned i = 0; i < 4; ++i) {
      if (v[i] * 0.0f != 0.0f) finite = false;  // infinity * 0 and NaN * 0 are NaN
      best.take(v[i], at + i < columns ? static_cast<int>(at + i) : -1);
    }
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    const float value = __shfl_xor_sync(0xFFFFFFFFu, best.value, apart);
    best.take(value, __shfl_xor_sync(0xFFFFFFFFu, best.id, apart));
  }
  finite = __all_sync(0xFFFFFFFFu, finite) != 0;
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = best.value;
    ids[threadIdx.x / 32] = best.id;
    finites[threadIdx.x / 32] = finite ? 1 : 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < kTopThreads / 32; ++warp) {
    best.take(values[warp], ids[warp]);
    finite = finite && finites[warp] != 0;
  }
  if (columns != 0 && best.id < 0) best.id = 0;  // nothing but NaN
  Top top;
  top.logit = columns != 0 ? row[best.id] : 0.0f;
  top.id = best.id;
  top.finite = finite;
  tops[blockIdx.x] = top;
}

}  // namespace lockstep::device::cuda
