#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cpu/weight.h"

namespace lockstep::device::cpu {

/// A weight as the device's products use it: usually one packed matrix. Where the spec says that its rows are parts that are used together
/// (gate and up), the parts are packed one by one, so that a thread has the same share of each.
class LinearWeight final : public Weight {
 public:
  LinearWeight(WeightSpec spec, std::vector<std::unique_ptr<CpuWeight>> parts)
      : spec_(std::move(spec)), num_roots_(spec_.num_roots()), parts_(std::move(parts)) {}

  const WeightSpec& spec() const override { return spec_; }
  std::size_t size_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& part : parts_) bytes += part->size_bytes();
    return bytes;
  }
  std::size_t num_roots() const { return num_roots_; }
  std::size_t num_parts() const { return parts_.size(); }
  const CpuWeight& part(std::size_t i) const { return *parts_[i]; }
  /// First row of a thread's share of a part, counted from that of the part.
  std::size_t share_row(std::size_t thread, std::size_t part = 0) const {
    const PackedShape& shape = parts_[part]->shape();
    return std::min(shape.share_begin(thread) * kLanes, shape.rows);
  }

 private:
  WeightSpec spec_;
  std::size_t num_roots_;
  std::vector<std::unique_ptr<CpuWeight>> parts_;
};

}  // namespace lockstep::device::cpu
