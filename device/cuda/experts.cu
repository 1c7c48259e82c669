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

std::size_t bytes_of(Rows matrix, std::size_t num_rows) { return num_rows * matrix.stride * element_bytes(matrix.type); }

const CudaWeight& own(const Weight* weight) { return static_cast<const CudaWeight&>(*weight); }

void require_alike(const Weight* weight, const Weight* first) {
  const WeightSpec &a = weight->spec(), &b = first->spec();
  if (a.rows != b.rows || a.columns != b.columns || a.dtype != b.dtype || a.leaves != b.leaves)
    throw std::invalid_argument("'" + a.name + "' and '" + b.name +
                                "': the experts of a layer must have the same shapes, types and leaves");
}

/// The addresses of a layer's table, in their order.
template <class Visit>
void for_each_address(std::span<const Expert> experts, const Visit& visit) {
  for (const Expert& each : experts) {
    visit(own(each.gate_up).data());
    visit(each.gate_up_bias);
  }
  for (const Expert& each : experts) {
    visit(own(each.down).data());
    visit(nullptr);
  }
  for (const Expert& each : experts) visit(each.down_bias);
}

/// Asked in every step that is not recorded. Other weights may stand where those of the layer have been.
bool is_table_of(std::span<const Expert> experts, std::span<const void* const> addresses) {
  std::size_t visited = 0, same = 0;
  for_each_address(experts, [&](const void* address) {
    if (visited < addresses.size() && addresses[visited] == address) ++same;
    ++visited;
  });
  return visited == addresses.size() && same == visited;
}

/// The most tiles that rows of experts can make.
std::uint32_t most_tiles(std::size_t num_tokens, const Mixture& mixture, std::uint32_t tile_rows) {
  const std::size_t rows = num_tokens * mixture.per_token, experts = std::min(rows, mixture.experts.size());
  const std::size_t begun = experts + (rows - experts) / tile_rows, of_one = (num_tokens + tile_rows - 1) / tile_rows;
  return static_cast<std::uint32_t>(std::min(begun, experts * of_one));
}

/// What group_rows writes, for `most_rows` rows.
struct GroupMemory {
  ExpertChoice* choices;
  Grouping::Tile *first, *second;
  std::uint32_t* row_tokens;

  static constexpr std::size_t kRowBytes = sizeof(ExpertChoice) + 2 * sizeof(Grouping::Tile) + sizeof(std::uint32_t);
  GroupMemory(void* memory, std::size_t most_rows)
      : choices(static_cast<ExpertChoice*>(memory)),
        first(reinterpret_cast<Grouping::Tile*>(choices + most_rows)),
        second(first + most_rows),
        row_tokens(reinterpret_cast<std::uint32_t*>(second + most_rows)) {}
};

}  // namespace

void route(const Launch& where, Rows logits, std::size_t num_rows, const Routing& routing, Rows out) {
  if (num_rows == 0) return;
  const auto blocks = static_cast<unsigned>((num_rows + kRouteThreads - 1) / kRouteThreads);
  check(launch(route_rows<float>, dim3(blocks), dim3(kRouteThreads), 0, where.stream, const_rows(logits), static_cast<unsigned>(num_rows),
               static_cast<unsigned>(logits.columns), static_cast<unsigned>(routing.per_token), routing.renormalised,
               mutable_rows<float>(out)),
        "launching route_rows");
}

ExpertSums::Matrices ExpertSums::shapes(std::size_t per_token, const WeightSpec& gate_up, const WeightSpec& down) const {
  const auto matrix = [](Activation type, std::size_t columns) { return Rows{nullptr, columns, row_stride(type, columns), type}; };
  const std::size_t num_leaves = down.num_roots(), inner = gate_up.rows / 2;
  const std::size_t bytes_of_token = num_leaves * per_token * down.rows * sizeof(float);
  const std::size_t most_tokens = std::clamp<std::size_t>(max_bytes_ / (bytes_of_token + 1), 1, max_tokens_);
  return {.most_tokens = most_tokens,
          .most_rows = most_tokens * per_token,
          .num_leaves = num_leaves,
          .products = matrix(Activation::kFloat32, 2 * inner),
          .inner = matrix(activation_for(down.dtype), inner),
          .partial = matrix(Activation::kFloat32, down.rows)};
}

std::size_t ExpertSums::memory_bytes(std::size_t per_token, const WeightSpec& gate_up, const WeightSpec& down) const {
  const Matrices needed = shapes(per_token, gate_up, down);
  return needed.most_rows * GroupMemory::kRowBytes + bytes_of(needed.products, needed.most_rows) +
         bytes_of(needed.inner, needed.most_rows) + bytes_of(needed.partial, needed.num_leaves * needed.most_rows);
}

const ExpertSums::Table& ExpertSums::table_of(const Launch& where, std::span<const Expert> experts) {
  Table& table = tables_[experts.front().gate_up];
  if (is_table_of(experts, table.addresses)) return table;
  for (const Expert& each : experts) {
    require_alike(each.gate_up, experts.front().gate_up);
    require_alike(each.down, experts.front().down);
  }
  table.addresses.clear();
  for_each_address(experts, [&](const void* address) { table.addresses.push_back(address); });
  table.num_experts = experts.size();
  const std::size_t bytes = table.addresses.size() * sizeof(void*);
  table.memory = DeviceMemory(bytes, "the addresses of experts");
  check(cudaMemcpyAsync(table.memory.data(), table.addresses.data(), bytes, cudaMemcpyHostToDevice, where.stream),
        "uploading the addresses of experts");
  return table;
}

ExpertSums::Matrices ExpertSums::matrices(const Mixture& mixture) {
  Matrices needed = shapes(mixture.per_token, mixture.experts.front().gate_up->spec(), mixture.experts.front().down->spec());
  const auto take = [](DeviceMemory& memory, std::size_t bytes) {
    if (memory.size_bytes() < bytes) memory = DeviceMemory(bytes, "experts");
    return memory.data();
  };
  take(grouping_, needed.most_rows * GroupMemory::kRowBytes);
  needed.products.data = take(products_, bytes_of(needed.products, needed.most_rows));
  needed.inner.data = take(inner_, bytes_of(needed.inner, needed.most_rows));
  needed.partial.data = take(partial_, bytes_of(needed.partial, needed.num_leaves * needed.most_rows));
  return needed;
}

void ExpertSums::run(const Launch& where, Rows h, std::size_t num_rows, Rows routing, const std::int32_t* token_ids, const Mixture& mixture,
                     Rows out) {
  if (num_rows == 0 || mixture.experts.empty()) return;
  if (mixture.experts.size() > kMostExperts)
    throw std::invalid_argument("the CUDA device takes at most " + std::to_string(kMostExperts) + " experts in a layer, not " +
                                std::to_string(mixture.experts.size()));
  if (num_rows > max_tokens_)
    throw std::invalid_argument("experts: " + std::to_string(num_rows) + " tokens are more than the " + std::to_string(max_tokens_) +
                                " of a step");
  const Table& table = table_of(where, mixture.experts);
  const LeafMerges merges = merges_of(mixture.leaves);
  const Matrices memory = matrices(mixture);
  for (std::size_t first = 0; first < num_rows; first += memory.most_tokens) {
    const std::size_t count = std::min(memory.most_tokens, num_rows - first);
    multiply(where, rows_from(h, first), count, rows_from(routing, first), token_ids == nullptr ? nullptr : token_ids + first, mixture,
             table, memory);
    const bool aligned =
        is_aligned(memory.partial) && std::ranges::all_of(mixture.experts, [](const Expert& each) { return is_aligned(each.down_bias); });
    const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>((out.columns + kSumColumns - 1) / kSumColumns));
    check(launch(sum_expert_rows<float>, grid, dim3(kSumThreads), 0, where.stream,
                 ExpertSumArguments{.partial = const_rows(memory.partial),
                                    .choices = GroupMemory(grouping_.data(), memory.most_rows).choices,
                                    .biases = table.down_biases(),
                                    .out = mutable_rows<float>(rows_from(out, first)),
                                    .root_stride = num_rows,
                                    .num_rows = static_cast<std::uint32_t>(count * mixture.per_token),
                                    .num_leaves = static_cast<std::uint32_t>(mixture.leaves.size()),
                                    .per_token = static_cast<std::uint32_t>(mixture.per_token),
                                    .columns = static_cast<std::uint32_t>(out.columns),
                                    .aligned = aligned},
                 merges),
          "launching sum_expert_rows");
  }
}

/// The products of `count` tokens with the experts that they chose, to memory.partial.
void ExpertSums::multiply(const Launch& where, Rows h, std::size_t count, Rows routing, const std::int32_t* token_ids,
                          const Mixture& mixture, const Table& table, const Matrices& memory) {
  const CudaWeight &gate_up = own(mixture.experts.front().gate_up), &down = own(mixture.experts.front().down);
  const GroupMemory group(grouping_.data(), memory.most_rows);
  const std::size_t rows = count * mixture.per_token, num_experts = mixture.experts.size(), chosen = std::min(rows, num_experts);
  const std::size_t typical = std::min(count, 2 * ((rows - 1) / num_experts + 1));  // tokens of an expert: the mean is half of it
  const Tile first_tile = choose_tile(where, gate_up, typical, chosen), second_tile = choose_tile(where, down, typical, chosen);
  const TileList first{group.first, most_tiles(count, mixture, tokens_of(first_tile)), tokens_of(first_tile)};
  const TileList second{group.second, most_tiles(count, mixture, tokens_of(second_tile)), tokens_of(second_tile)};
  check(launch(group_rows<float>, dim3(1), dim3(kGroupThreads), 0, where.stream,
               GroupArguments{.weights = const_rows(routing),
                              .token_ids = token_ids,
                              .choices = group.choices,
                              .row_tokens = group.row_tokens,
                              .first = first,
                              .second = second,
                              .num_tokens = static_cast<std::uint32_t>(count),
                              .num_experts = static_cast<std::uint32_t>(num_experts),
                              .per_token = static_cast<std::uint32_t>(mixture.per_token)}),
        "launching group_rows");
  grouped_linear(where, h, rows, gate_up, {first.tiles, table.gate_up(), group.row_tokens}, first_tile, first.num_tiles, memory.products);
  gated(where, mixture.gating, memory.products, rows, memory.inner);
  grouped_linear(where, memory.inner, rows, down, {second.tiles, table.down(), nullptr}, second_tile, second.num_tiles, memory.partial);
}

}  // namespace lockstep::device::cuda
