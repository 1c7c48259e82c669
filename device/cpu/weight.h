#pragma once

#include <utility>

#include "device/cpu/memory.h"
#include "device/cpu/packing.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"

namespace lockstep::device::cpu {

/// A packed weight, in a piece of the device's arena.
class CpuWeight final : public Weight {
 public:
  CpuWeight(WeightSpec spec, const PackedShape& shape, Arena::Piece piece)
      : spec_(std::move(spec)), shape_(shape), piece_(std::move(piece)) {}
  const WeightSpec& spec() const override { return spec_; }
  std::size_t size_bytes() const override { return shape_.size_bytes(); }
  const PackedShape& shape() const { return shape_; }
  std::byte* data() const { return piece_.data; }

 private:
  WeightSpec spec_;
  PackedShape shape_;
  Arena::Piece piece_;
};

/// @throws std::invalid_argument that names the weight and what is wrong with its leaves or sizes.
void check_weight(const WeightSpec& spec);

/// Reads and packs a weight, every thread its own share of the panels, 64 rows at a time.
std::unique_ptr<CpuWeight> load_cpu_weight(WeightSpec spec, bool q8_offset, const ReadRows& read, ThreadPool& pool, Arena& arena);

}  // namespace lockstep::device::cpu
