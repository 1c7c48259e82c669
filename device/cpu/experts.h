#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/device.h"

/// What mixtures of experts need beside products: the choice of experts, and the rows that go to one.
namespace lockstep::device::cpu {

/// The weights of all experts for one token; 0 where an expert is not chosen. Logits that are not finite make every weight NaN, so that the
/// fault shows. `scratch` holds as many floats.
void route_row(const Kernels& kernels, std::span<const float> logits, const Routing& routing, std::span<float> weights,
               std::span<float> scratch);

/// Row i of `to` = row rows[i] of `from`; both kFloat32 or both kInt8Blocks, as many columns.
void gather_rows(const Matrix& from, std::span<const std::uint32_t> rows, const Matrix& to);

/// op(row) for each of `count` rows, on several threads where `cost` (elements of a row) is worth it.
using OverRows = std::function<void(std::size_t count, std::size_t cost, const std::function<void(std::size_t)>& op)>;

/// Device::experts. The tokens of one expert go through its products together; what these give is added up leaf by leaf. A few tokens at a
/// time, so that the leaf sums need little memory.
class ExpertSums {
 public:
  struct Call {
    const Matrix& h;
    std::size_t num_rows;
    const float* routing;  // [num_rows, experts]
    std::span<const Expert> experts;
    Nonlinearity function;
    std::span<const Leaf> leaves;
    const Matrix& out;
  };
  void run(Device& device, const Kernels& kernels, const OverRows& over_rows, const Call& call);

 private:
  struct Rows {
    std::size_t first, count;
  };
  void add_expert(Device& device, const Kernels& kernels, const OverRows& over_rows, const Call& call, Rows rows, std::size_t expert);
  void add_leaves(const Kernels& kernels, const OverRows& over_rows, const Call& call, Rows rows);
  static Matrix matrix(const Device& device, std::vector<std::byte>& memory, Activation type, std::size_t rows, std::size_t columns);

  std::vector<float> leaf_sums_;      // [leaves, rows, hidden]
  std::vector<std::uint32_t> chose_;  // rows that chose the expert
  std::array<std::vector<std::byte>, 4> memory_;
};

}  // namespace lockstep::device::cpu
