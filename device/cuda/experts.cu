#include <algorithm>
#include <stdexcept>
#include <string>

#include "device/cuda/error.h"
#include "device/cuda/experts.h"
#include "device/cuda/kernels/experts.cuh"
#include "device/cuda/row_launch.h"
#include "device/cuda/rows.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kMostSumBytes = std::size_t{256} << 20;  // of the leaf sums of the tokens that go together

dim3 grid_of(std::size_t num_rows, std::size_t columns) {
  return dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((columns + kRowStep - 1) / kRowStep));
}

LeafMerges merges_of(std::span<const Leaf> leaves) {
  if (leaves.size() > kMostLeaves)
    throw std::invalid_argument("the CUDA device takes experts of at most " + std::to_string(kMostLeaves) + " leaves on a rank");
  LeafMerges merges;
  unsigned char open[kMostLeaves] = {};
  unsigned depth = 0;
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    open[depth++] = static_cast<unsigned char>(leaf);
    for (std::uint32_t i = 0; i < leaves[leaf].merges; ++i, --depth) {
      merges.into[merges.num_merges] = open[depth - 2];
      merges.from[merges.num_merges++] = open[depth - 1];
    }
    if (leaves[leaf].ends_root) merges.roots[merges.num_roots++] = open[--depth];
  }
  return merges;
}

Rows rows_from(Rows rows, std::size_t first) {
  rows.data = static_cast<std::byte*>(rows.data) + first * rows.stride * element_bytes(rows.type);
  return rows;
}

}  // namespace

void route(const Launch& where, Rows logits, std::size_t num_rows, const Routing& routing, Rows out) {
  if (num_rows == 0) return;
  const auto blocks = static_cast<unsigned>((num_rows + kRouteThreads - 1) / kRouteThreads);
  check(launch(route_rows<float>, dim3(blocks), dim3(kRouteThreads), 0, where.stream, const_rows(logits), static_cast<unsigned>(num_rows),
               static_cast<unsigned>(logits.columns), static_cast<unsigned>(routing.per_token), routing.renormalised,
               mutable_rows<float>(out)),
        "launching route_rows");
}

Rows ExpertSums::matrix(DeviceMemory& memory, Activation type, std::size_t num_rows, std::size_t columns) {
  const std::size_t stride = row_stride(type, columns), bytes = num_rows * stride * element_bytes(type);
  if (memory.size_bytes() < bytes) memory = DeviceMemory(bytes, "experts");
  return {memory.data(), columns, stride, type};
}

void ExpertSums::run(const Launch& where, Rows h, std::size_t num_rows, Rows routing, std::span<const Expert> experts, const Gating& gating,
                     std::span<const Leaf> leaves, Rows out) {
  const LeafMerges merges = merges_of(leaves);
  const std::size_t hidden = out.columns, num_leaves = leaves.size();
  const std::size_t together = std::clamp<std::size_t>(kMostSumBytes / (num_leaves * hidden * sizeof(float) + 1), 1, 512);
  for (std::size_t first = 0; first < num_rows; first += together) {
    const std::size_t count = std::min(together, num_rows - first);
    const Rows sums = matrix(sums_, Activation::kFloat32, num_leaves * count, hidden);
    const bool aligned = is_aligned(sums) && is_aligned(out);
    check(cudaMemsetAsync(sums.data, 0, num_leaves * count * hidden * sizeof(float), where.stream), "clearing memory");
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const auto& gate_up = static_cast<const CudaWeight&>(*experts[e].gate_up);
      const auto& down = static_cast<const CudaWeight&>(*experts[e].down);
      const Rows products = matrix(products_, Activation::kFloat32, count, gate_up.spec().rows);
      linear(where, rows_from(h, first), count, gate_up, experts[e].gate_up_bias, products, 0);
      const Rows inner = matrix(inner_, activation_for(down.spec().dtype), count, gate_up.spec().rows / 2);
      gated(where, gating, products, count, inner);
      const Rows partial = matrix(partial_, Activation::kFloat32, num_leaves * count, hidden);
      linear(where, inner, count, down, nullptr, partial, 0);
      const float* weights = static_cast<const float*>(routing.data) + first * routing.stride + e;
      check(
          launch(add_expert_rows<float>, grid_of(num_leaves * count, hidden), dim3(kRowThreads), 0, where.stream, mutable_rows<float>(sums),
                 const_rows(partial), experts[e].down_bias, weights, static_cast<unsigned>(routing.stride), static_cast<unsigned>(count),
                 static_cast<unsigned>(hidden), aligned && is_aligned(partial) && is_aligned(experts[e].down_bias)),
          "launching add_expert_rows");
    }
    check(launch(add_leaf_rows<float>, grid_of(count, hidden), dim3(kRowThreads), 0, where.stream, merges, mutable_rows<float>(sums),
                 mutable_rows<float>(rows_from(out, first)), num_rows, static_cast<unsigned>(hidden), aligned),
          "launching add_leaf_rows");
  }
}

}  // namespace lockstep::device::cuda
