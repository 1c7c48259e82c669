#include "device/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/int8_matrix.h"

namespace lockstep::device::cpu {

void route_row(const Kernels& kernels, std::span<const float> logits, const Routing& routing, std::span<float> weights,
               std::span<float> scratch) {
  const std::size_t count = logits.size();
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    return std::fill(weights.begin(), weights.end(), std::numeric_limits<float>::quiet_NaN());
  }
  const float largest = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < count; ++i) scratch[i] = logits[i] - largest;
  kernels.exponentials(scratch.data(), count, scratch.data());
  std::fill(weights.begin(), weights.end(), 0.0f);
  for (std::size_t chosen = 0; chosen < std::min(routing.per_token, count); ++chosen) {
    std::size_t best = count;
    for (std::size_t i = 0; i < count; ++i) {
      if (weights[i] == 0.0f && (best == count || logits[i] > logits[best])) best = i;
    }
    weights[best] = 1.0f;
  }
  float sum = 0.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (!routing.renormalised || weights[i] != 0.0f) sum = sum + scratch[i];
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (weights[i] != 0.0f) weights[i] = scratch[i] / sum;
  }
}

void gather_rows(const Matrix& from, std::span<const std::uint32_t> rows, const Matrix& to) {
  if (from.type == Activation::kFloat32) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(static_cast<float*>(to.data) + i * to.columns, static_cast<const float*>(from.data) + rows[i] * from.columns,
                  to.columns * sizeof(float));
    }
    return;
  }
  const Int8View source = int8_view(from), target = int8_view(to);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t at = i * target.blocks, other = rows[i] * source.blocks;
    std::memcpy(target.quants + i * target.stride, source.quants + rows[i] * source.stride, from.columns);
    std::memcpy(target.scales + at, source.scales + other, source.blocks * sizeof(float));
    std::memcpy(target.scaled_sums + at, source.scaled_sums + other, source.blocks * sizeof(float));
    std::memcpy(target.sums + 2 * at, source.sums + 2 * other, 2 * source.blocks * sizeof(std::int32_t));
  }
}

}  // namespace lockstep::device::cpu
