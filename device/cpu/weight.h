#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/cpu/memory.h"
#include "device/cpu/packing.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"

namespace lockstep::device::cpu {

/// A packed weight: the share of each thread in a piece of that thread's arena. Shares of weights that follow each other then follow each
/// other in memory, and a thread's reading never runs into what another thread reads: measured on two cores, a quarter faster than one
/// block of memory a weight.
class CpuWeight final : public Weight {
 public:
  CpuWeight(WeightSpec spec, const PackedShape& shape, std::vector<Arena::Piece> shares)
      : spec_(std::move(spec)), shape_(shape), shares_(std::move(shares)) {}
  const WeightSpec& spec() const override { return spec_; }
  std::size_t size_bytes() const override { return shape_.size_bytes(); }
  const PackedShape& shape() const { return shape_; }
  std::byte* share(std::size_t thread) const { return shares_[thread].data; }

 private:
  WeightSpec spec_;
  PackedShape shape_;
  std::vector<Arena::Piece> shares_;  // [threads]
};

/// Reads and packs a weight, every thread its own share of the panels, 64 rows at a time. @param arenas one a thread
std::unique_ptr<CpuWeight> load_cpu_weight(WeightSpec spec, bool q8_offset, const ReadRows& read, ThreadPool& pool,
                                           std::span<Arena> arenas);

}  // namespace lockstep::device::cpu
