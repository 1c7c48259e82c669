#pragma once

#include "device/cuda/kernels/rows.cuh"

/// Mixtures of experts beside their products. The bits are those of the CPU device.
namespace lockstep::device::cuda {

constexpr unsigned kRouteThreads = 32;
constexpr unsigned kMostLeaves = 64;  // of the inner columns on one rank

/// How leaf sums become roots: the additions in order, then which sums are the roots.
struct LeafMerges {
  unsigned num_merges = 0;
  unsigned num_roots = 0;
  unsigned char into[kMostLeaves] = {};
  unsigned char from[kMostLeaves] = {};
  unsigned char roots[kMostLeaves] = {};
};

/// A thread a row: weights of the chosen experts, 0 for the others; all NaN where a logit is not finite. There are few experts, and a token
/// reads them from L1. Bytes: 8 n a row. Operations: about (top + 50) n.
template <class Float>
__global__ void __launch_bounds__(kRouteThreads) route_rows(ConstRows<Float> logits, unsigned num_rows, unsigned num_experts,
                                                            unsigned per_token, bool renormalised, MutableRows<Float> out) {
  const unsigned t = blockIdx.x * kRouteThreads + threadIdx.x;
  if (t >= num_rows) return;
  const float* row = logits.row(t);
  float* weights = out.row(t);
  float largest = -INFINITY;
  bool finite = true;
  for (unsigned e = 0; e < num_experts; ++e) {
    finite = finite && (__float_as_uint(row[e]) & 0x7F800000u) != 0x7F800000u;
    largest = row[e] > largest ? row[e] : largest;
    weights[e] = 0.0f;
  }
  if (!finite) {
    for (unsigned e = 0; e < num_experts; ++e) weights[e] = __uint_as_float(0x7FC00000u);
    return;
  }
  for (unsigned chosen = 0; chosen < per_token; ++chosen) {
    unsigned best = num_experts;
    for (unsigned e = 0; e < num_experts; ++e) {
      if (weights[e] == 0.0f && (best == num_experts || row[e] > row[best])) best = e;
    }
    if (best < num_experts) weights[best] = 1.0f;
  }
  float sum = 0.0f;
  for (unsigned e = 0; e < num_experts; ++e) {
    if (!renormalised || weights[e] != 0.0f) sum = sum + exp_of(row[e] - largest);
  }
  for (unsigned e = 0; e < num_experts; ++e) {
    if (weights[e] != 0.0f) weights[e] = exp_of(row[e] - largest) / sum;
  }
}

/// Grid (leaves x tokens, pieces). sums = fma(weight of the token, partial, sums) where the weight is not 0; to the partial sums of the
/// first leaf `bias` is added before, if it is not null. Bytes: 12 n a row.
template <class Float>
__global__ void __launch_bounds__(kRowThreads)
    add_expert_rows(MutableRows<Float> sums, ConstRows<Float> partial, const Float* bias, const Float* weights, unsigned num_experts,
                    unsigned num_tokens, unsigned columns, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  const float weight = weights[blockIdx.x % num_tokens * num_experts];
  if (at >= columns || weight == 0.0f) return;
  float v[4], sum[4];
  load_four(partial.row(blockIdx.x), at, columns, aligned, v);
  load_four(sums.row(blockIdx.x), at, columns, aligned, sum);
  if (bias != nullptr && blockIdx.x < num_tokens) {
    float b[4];
    load_four(bias, at, columns, aligned, b);
    for (unsigned i = 0; i < 4; ++i) v[i] = v[i] + b[i];
  }
  for (unsigned i = 0; i < 4; ++i) sum[i] = fmaf(weight, v[i], sum[i]);
  store_four(sums.row(blockIdx.x), at, columns, aligned, sum);
}

/// Grid (tokens, pieces). Adds the leaf sums of a token up to its roots; root r goes to row r * root_stride + token of `out`. Bytes: 12 n a
/// merge, 8 n a root.
template <class Float>
__global__ void __launch_bounds__(kRowThreads)
    add_leaf_rows(const __grid_constant__ LeafMerges merges, MutableRows<Float> sums, MutableRows<Float> out, std::size_t root_stride,
                  unsigned columns, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x, num_tokens = gridDim.x;
  if (at >= columns) return;
  for (unsigned m = 0; m < merges.num_merges; ++m) {
    float below[4], above[4];
    float* into = sums.row(merges.into[m] * num_tokens + blockIdx.x);
    load_four(into, at, columns, aligned, below);
    load_four(sums.row(merges.from[m] * num_tokens + blockIdx.x), at, columns, aligned, above);
    for (unsigned i = 0; i < 4; ++i) below[i] = below[i] + above[i];
    store_four(into, at, columns, aligned, below);
  }
  for (unsigned root = 0; root < merges.num_roots; ++root) {
    float v[4];
    load_four(sums.row(merges.roots[root] * num_tokens + blockIdx.x), at, columns, aligned, v);
    store_four(out.row(root * root_stride + blockIdx.x), at, columns, aligned, v);
  }
}

}  // namespace lockstep::device::cuda
