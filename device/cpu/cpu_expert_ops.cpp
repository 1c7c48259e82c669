// Mixtures of experts on the CPU device. Which products there are depends on what the router gave, so these are not put into a step's
// program but run at once, each on all threads.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_step_device.h"
#include "device/cpu/experts.h"

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kExpertBytes = std::size_t{64} << 20;  // of the leaf sums of experts, at a time

}  // namespace

void CpuDevice::experts(const Matrix& h, std::size_t num_rows, const Matrix& routing, std::size_t, std::span<const Expert> experts,
                        const Gating& gating, std::span<const Leaf> leaves, const Matrix& out) {
  require(routing.columns == experts.size(), "experts: as many weights as experts are needed");
  flush();
  const Pause pause(*this);
  copies_.set_valid(out, false);
  const std::size_t hidden = out.columns;
  const std::size_t together = std::clamp<std::size_t>(kExpertBytes / (leaves.size() * hidden * sizeof(float) + 1), 1, 512);
  for (std::size_t first = 0; first < num_rows; first += together) {
    const std::size_t count = std::min(together, num_rows - first);
    sum_experts(h, {first, count, num_rows}, floats_of(routing, num_rows), experts, gating, leaves, out);
  }
}

/// Memory of a matrix of floats, or of blocks, that is kept from call to call.
Matrix CpuDevice::scratch_matrix(std::vector<std::byte>& memory, Activation type, std::size_t rows, std::size_t columns) const {
  const std::size_t bytes = matrix_bytes(type, rows, columns) + 64;
  if (memory.size() < bytes) memory.resize(bytes);
  return {memory.data(), columns, rows, type};
}

/// The tokens of one expert go through its products together; then `leaf_sums_` [leaves, count, hidden] takes in what they give.
void CpuDevice::sum_experts(const Matrix& h, Rows rows, const float* routing, std::span<const Expert> experts, const Gating& gating,
                            std::span<const Leaf> leaves, const Matrix& out) {
  const std::size_t hidden = out.columns;
  leaf_sums_.assign(leaves.size() * rows.count * hidden, 0.0f);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    expert_rows_.clear();
    for (std::size_t t = rows.first; t < rows.first + rows.count; ++t) {
      if (routing[t * experts.size() + e] != 0.0f) expert_rows_.push_back(static_cast<std::uint32_t>(t));
    }
    if (expert_rows_.empty()) continue;
    const std::size_t count = expert_rows_.size();
    const Weight& gate_up = *experts[e].gate_up;
    const Weight& down = *experts[e].down;
    const Matrix in = scratch_matrix(expert_memory_[0], h.type, count, h.columns);
    gather_rows(h, expert_rows_, in);
    const Matrix products = scratch_matrix(expert_memory_[1], Activation::kFloat32, count, gate_up.spec().rows);
    linear(in, count, gate_up, experts[e].gate_up_bias, products, 0);
    // Where block types are multiplied with floats (--activation-dtype), h stands as floats.
    const bool as_floats = h.type == Activation::kFloat32 && info(gate_up.spec().dtype).block_quantised();
    const Activation inner_type = as_floats ? Activation::kFloat32 : activation_for(down.spec().dtype);
    const Matrix inner = scratch_matrix(expert_memory_[2], inner_type, count, gate_up.spec().rows / 2);
    gated(gating, products, count, inner);
    const Matrix partial = scratch_matrix(expert_memory_[3], Activation::kFloat32, leaves.size() * count, hidden);
    linear(inner, count, down, nullptr, partial, 0);
    const float* from = static_cast<const float*>(partial.data);
    over_rows({}, leaves.size() * count, [&](std::size_t, std::size_t i) {
      const std::size_t leaf = i / count, t = expert_rows_[i % count];
      kernels_.add_scaled(&leaf_sums_[(leaf * rows.count + t - rows.first) * hidden], from + i * hidden,
                          leaf == 0 ? experts[e].down_bias : nullptr, hidden, routing[t * experts.size() + e]);
    });
  }
  add_leaves(rows, leaves, out);
}

/// The leaves of each row to its roots.
void CpuDevice::add_leaves(Rows rows, std::span<const Leaf> leaves, const Matrix& out) {
  const std::size_t hidden = out.columns, stride = rows.count * hidden;
  const auto roots = static_cast<std::size_t>(std::count_if(leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.ends_root; }));
  float* to = floats_of(out, roots * rows.all);
  over_rows({}, rows.count, [&](std::size_t, std::size_t t) {
    std::size_t open[kMaxOpenSums + 1], depth = 0, root = 0;
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      open[depth++] = leaf * stride + t * hidden;
      for (std::uint32_t merge = 0; merge < leaves[leaf].merges; ++merge, --depth)
        kernels_.add(&leaf_sums_[open[depth - 2]], &leaf_sums_[open[depth - 1]], nullptr, hidden);
      if (!leaves[leaf].ends_root) continue;
      std::memcpy(to + (root++ * rows.all + rows.first + t) * hidden, &leaf_sums_[open[--depth]], hidden * sizeof(float));
    }
  });
}

}  // namespace lockstep::device::cpu
