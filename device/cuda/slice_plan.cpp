#include "device/cuda/slice_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lockstep::device::cuda {
namespace {

constexpr std::uint32_t kUnitsOfSlice = 4;
constexpr std::uint32_t kMaxSlicesOfLeaf = 8;

/// The slices of the leaf [begin, leaf.end), its units from `first_unit` on.
void push_slices(const Leaf& leaf, std::uint32_t begin, std::uint32_t first_unit, std::uint32_t unit_columns, std::uint32_t count,
                 std::vector<Slice>& slices) {
  const std::uint32_t units = (leaf.end - begin + unit_columns - 1) / unit_columns;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t from = i * units / count;
    slices.push_back({first_unit + from, first_unit + (i + 1) * units / count, begin + from * unit_columns, leaf.end, 0, 0});
  }
  slices[slices.size() - count].flags |= Slice::kBeginsLeaf;
  slices.back().merges = leaf.merges;
  slices.back().flags |= Slice::kEndsLeaf | (leaf.ends_root ? Slice::kEndsRoot : 0u);
}

}  // namespace

SlicePlan plan_slices(const WeightSpec& spec) {
  spec.check(kMaxLevels);
  if (spec.columns > UINT32_MAX / 2 || spec.rows > UINT32_MAX / 2)
    throw std::invalid_argument("weight '" + spec.name + "': it has too many rows or columns");
  SlicePlan plan;
  plan.leaves_are_vectors = true;
  const bool exact = spec.dtype == DType::kF32;
  const std::uint32_t unit_columns = exact ? 1 : kUnitColumns;
  std::uint32_t begin = 0, open = 0;
  for (const Leaf& leaf : spec.leaves) {
    const std::uint32_t units = (leaf.end - begin + unit_columns - 1) / unit_columns;
    const std::uint32_t count = exact ? 1 : std::clamp(units / kUnitsOfSlice, 1u, kMaxSlicesOfLeaf);
    push_slices(leaf, begin, plan.num_units, unit_columns, count, plan.slices);
    plan.num_units += units;
    plan.num_levels = std::max(plan.num_levels, open);
    plan.num_roots += leaf.ends_root ? 1 : 0;
    plan.leaves_are_vectors = plan.leaves_are_vectors && leaf.end % 8 == 0;
    begin = leaf.end;
    open = leaf.ends_root ? 0 : open + 1 - leaf.merges;
  }
  return plan;
}

}  // namespace lockstep::device::cuda
