#include "device/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/int8_matrix.h"

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kMostSumBytes = std::size_t{64} << 20;  // of the leaf sums of the rows that go together

}  // namespace

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

Matrix ExpertSums::matrix(const Device& device, std::vector<std::byte>& memory, Activation type, std::size_t rows, std::size_t columns) {
  const std::size_t bytes = device.matrix_bytes(type, rows, columns) + 64;
  if (memory.size() < bytes) memory.resize(bytes);
  return {memory.data(), columns, rows, type};
}

void ExpertSums::run(Device& device, const Kernels& kernels, const OverRows& over_rows, const Call& call) {
  const std::size_t row_floats = call.leaves.size() * call.out.columns;
  const std::size_t together = std::clamp<std::size_t>(kMostSumBytes / (row_floats * sizeof(float) + 1), 1, 512);
  for (std::size_t first = 0; first < call.num_rows; first += together) {
    const Rows rows{first, std::min(together, call.num_rows - first)};
    leaf_sums_.assign(row_floats * rows.count, 0.0f);
    for (std::size_t expert = 0; expert < call.experts.size(); ++expert) add_expert(device, kernels, over_rows, call, rows, expert);
    add_leaves(kernels, over_rows, call, rows);
  }
}

void ExpertSums::add_expert(Device& device, const Kernels& kernels, const OverRows& over_rows, const Call& call, Rows rows,
                            std::size_t expert) {
  const auto weight_of = [&](std::size_t row) { return call.routing[row * call.experts.size() + expert]; };
  chose_.clear();
  for (std::size_t row = rows.first; row < rows.first + rows.count; ++row) {
    if (weight_of(row) != 0.0f) chose_.push_back(static_cast<std::uint32_t>(row));
  }
  if (chose_.empty()) return;
  const Weight& gate_up = *call.experts[expert].gate_up;
  const Weight& down = *call.experts[expert].down;
  const std::size_t count = chose_.size(), hidden = call.out.columns, inner_columns = gate_up.spec().rows / 2;
  const Matrix in = matrix(device, memory_[0], call.h.type, count, call.h.columns);
  gather_rows(call.h, chose_, in);
  const Matrix products = matrix(device, memory_[1], Activation::kFloat32, count, 2 * inner_columns);
  device.linear(in, count, gate_up, nullptr, products);
  // Where block types are multiplied with floats (--activation-dtype), h stands as floats.
  const bool as_floats = call.h.type == Activation::kFloat32 && info(gate_up.spec().dtype).block_quantised();
  const Activation inner_type = as_floats ? Activation::kFloat32 : device.activation_for(down.spec().dtype);
  const Matrix inner = matrix(device, memory_[2], inner_type, count, inner_columns);
  device.gated(call.function, products, count, inner);
  const Matrix partial = matrix(device, memory_[3], Activation::kFloat32, call.leaves.size() * count, hidden);
  device.linear(inner, count, down, nullptr, partial);
  const float* from = static_cast<const float*>(partial.data);
  over_rows(call.leaves.size() * count, hidden, [&](std::size_t i) {
    const std::size_t row = chose_[i % count];
    float* sum = &leaf_sums_[(i / count * rows.count + row - rows.first) * hidden];
    kernels.add_scaled(sum, from + i * hidden, hidden, weight_of(row));
  });
}

void ExpertSums::add_leaves(const Kernels& kernels, const OverRows& over_rows, const Call& call, Rows rows) {
  const std::size_t hidden = call.out.columns;
  float* to = static_cast<float*>(call.out.data);
  over_rows(rows.count, call.leaves.size() * hidden, [&](std::size_t row) {
    float* open[kMaxOpenSums + 1];
    std::size_t depth = 0, root = 0;
    for (std::size_t leaf = 0; leaf < call.leaves.size(); ++leaf) {
      open[depth++] = &leaf_sums_[(leaf * rows.count + row) * hidden];
      for (std::uint32_t merge = 0; merge < call.leaves[leaf].merges; ++merge, --depth)
        kernels.add(open[depth - 2], open[depth - 1], nullptr, hidden);
      if (!call.leaves[leaf].ends_root) continue;
      std::memcpy(to + (root++ * call.num_rows + rows.first + row) * hidden, open[--depth], hidden * sizeof(float));
    }
  });
}

}  // namespace lockstep::device::cpu
