#include <algorithm>
#include <stdexcept>
#include <string>

#include "device/cuda/error.h"
#include "device/cuda/kernels/embed.cuh"
#include "device/cuda/kernels/linear_decode.cuh"
#include "device/cuda/kernels/linear_exact.cuh"
#include "device/cuda/kernels/linear_prefill.cuh"
#include "device/cuda/linear.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kSharedLimit = 163 * 1024;  // of a block on sm_80, the smallest

constexpr unsigned divide_up(std::size_t n, std::size_t by) { return static_cast<unsigned>((n + by - 1) / by); }

void require(bool holds, const CudaWeight& weight, const char* what) {
  if (!holds) throw std::invalid_argument("linear with weight '" + weight.spec().name + "': " + what);
}

void require_fits(const Rows& in, const CudaWeight& weight, const Rows& out, std::size_t out_column) {
  const WeightSpec& spec = weight.spec();
  require(in.type == activation_for(spec.dtype), weight, "activations of the wrong type");
  require(in.columns == spec.columns, weight, "its columns and those of the activations differ");
  require(out.type == Activation::kFloat32 && out_column + spec.rows <= out.columns, weight, "no room for its rows in the output");
}

template <DType kType, int kTiles>
void launch_decode(const Launch& launch_on, const MmaLinear& args, std::uint32_t levels, unsigned num_tiles) {
  using Shape = DecodeShape<kType, kTiles>;
  static_assert(Shape::shared_bytes(kMaxLevels) <= kSharedLimit);
  const dim3 grid(num_tiles, divide_up(args.num_rows, kPanelRows));
  check(launch(linear_decode_kernel<kType, kTiles>, grid, dim3(32 * Shape::kWarps), Shape::shared_bytes(levels), launch_on.stream, args),
        "launching a matrix product for few tokens");
}

template <DType kType, int kTiles>
void launch_prefill(const Launch& launch_on, const MmaLinear& args, std::uint32_t levels, unsigned num_tiles) {
  using Shape = PrefillShape<kType, kTiles>;
  static_assert(Shape::shared_bytes(kTiles > 4 ? 0 : kMaxLevels) <= kSharedLimit);
  const dim3 grid(num_tiles, divide_up(args.num_rows, Shape::kRows));
  check(launch(linear_prefill_kernel<kType, kTiles>, grid, dim3(Shape::kThreads), Shape::shared_bytes(levels), launch_on.stream, args),
        "launching a matrix product for many tokens");
}

template <DType kType>
void launch_mma(const Launch& on, const MmaLinear& args, std::uint32_t levels, Tile tile, unsigned num_tiles) {
  switch (tile) {
    case Tile::kDecode8: return launch_decode<kType, 1>(on, args, levels, num_tiles);
    case Tile::kDecode16: return launch_decode<kType, 2>(on, args, levels, num_tiles);
    case Tile::kDecode32: return launch_decode<kType, 4>(on, args, levels, num_tiles);
    case Tile::kPrefill32: return launch_prefill<kType, 4>(on, args, levels, num_tiles);
    case Tile::kPrefill64: return launch_prefill<kType, 8>(on, args, levels, num_tiles);
    case Tile::kExact4:
    case Tile::kExact64: break;  // of F32 alone
  }
}

template <unsigned kPanels, unsigned kRows, unsigned kTokens, unsigned kTokenThreads>
void launch_exact(const Launch& on, const ExactLinear& args, std::uint32_t levels, unsigned num_tiles) {
  using Shape = ExactShape<kPanels, kRows, kTokens, kTokenThreads>;
  static_assert(Shape::shared_bytes(kMaxLevels) <= kSharedLimit);
  const dim3 grid(num_tiles, divide_up(args.num_rows, kPanels * kPanelRows));
  check(launch(linear_exact_kernel<kPanels, kRows, kTokens, kTokenThreads>, grid, dim3(Shape::kThreads), Shape::shared_bytes(levels),
               on.stream, args),
        "launching an exact matrix product");
}

/// One launch over a grid of `num_tiles` tiles of tokens.
void launch_tiles(const Launch& on, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, const Grouping& grouping,
                  Tile tile, unsigned num_tiles, float* out, std::size_t out_stride) {
  const WeightSpec& spec = weight.spec();
  const SlicePlan& plan = weight.plan();
  const auto set = [&](auto& args) {
    args.bias = bias;
    args.out = out;
    args.in_stride = in.stride;
    args.out_stride = out_stride;
    args.num_tokens = static_cast<std::uint32_t>(num_rows);
    args.num_rows = static_cast<std::uint32_t>(spec.rows);
    args.grouping = grouping;
  };
  if (spec.dtype == DType::kF32) {
    ExactLinear args;
    set(args);
    args.weights = static_cast<const float*>(weight.data());
    args.leaves = weight.slices();
    args.in = static_cast<const float*>(in.data);
    args.num_leaves = static_cast<std::uint32_t>(plan.slices.size());
    args.num_columns = static_cast<std::uint32_t>(spec.columns);
    if (tile == Tile::kExact4) return launch_exact<1, 1, 4, 1>(on, args, plan.num_levels, num_tiles);
    return launch_exact<2, 4, 8, 8>(on, args, plan.num_levels, num_tiles);
  }
  MmaLinear args;
  set(args);
  args.weights = static_cast<const unsigned char*>(weight.data());
  args.slices = weight.slices();
  args.in = static_cast<const std::uint16_t*>(in.data);
  args.num_slices = static_cast<std::uint32_t>(plan.slices.size());
  args.num_units = plan.num_units;
  args.vectors = plan.leaves_are_vectors && in.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(in.data) % 16 == 0;
  switch (spec.dtype) {
    case DType::kF16: return launch_mma<DType::kF16>(on, args, plan.num_levels, tile, num_tiles);
    case DType::kBF16: return launch_mma<DType::kBF16>(on, args, plan.num_levels, tile, num_tiles);
    case DType::kQ8_0: return launch_mma<DType::kQ8_0>(on, args, plan.num_levels, tile, num_tiles);
    case DType::kQ4_0: return launch_mma<DType::kQ4_0>(on, args, plan.num_levels, tile, num_tiles);
    case DType::kQ4_1: return launch_mma<DType::kQ4_1>(on, args, plan.num_levels, tile, num_tiles);
    default: break;  // F32 is done above, and there is no weight of another type (weight.cpp)
  }
}

template <DType kType>
void launch_embed(const Launch& on, const CudaWeight* table, std::int32_t first_id, const std::int32_t* ids, std::uint32_t num_ids,
                  bool adds, Rows out) {
  const dim3 grid(num_ids, divide_up(out.columns, 256));
  const auto* data = table == nullptr ? nullptr : static_cast<const unsigned char*>(table->data());
  const std::size_t num_units = table == nullptr ? 0 : table->plan().num_units;
  const std::uint32_t num_rows = table == nullptr ? 0 : static_cast<std::uint32_t>(table->spec().rows);
  check(launch(embed_kernel<kType>, grid, dim3(256), 0, on.stream, data, num_units, first_id, num_rows, ids,
               static_cast<std::uint32_t>(out.columns), adds, static_cast<float*>(out.data), out.stride),
        "launching the embedding");
}

}  // namespace

std::uint32_t tokens_of(Tile tile) {
  switch (tile) {
    case Tile::kExact4: return ExactShape<1, 1, 4, 1>::kTileTokens;
    case Tile::kExact64: return ExactShape<2, 4, 8, 8>::kTileTokens;
    case Tile::kDecode8: return 8;
    case Tile::kDecode16: return 16;
    case Tile::kDecode32:
    case Tile::kPrefill32: return 32;
    case Tile::kPrefill64: return 64;
  }
  return 0;
}

Tile choose_tile(const Launch& on, const CudaWeight& weight, std::size_t num_tokens, std::size_t num_weights) {
  if (weight.spec().dtype == DType::kF32) return num_tokens <= 16 ? Tile::kExact4 : Tile::kExact64;
  if (num_tokens <= 8) return Tile::kDecode8;
  if (num_tokens <= 16) return Tile::kDecode16;
  const Tile large = weight.plan().num_levels == 0 ? Tile::kPrefill64 : Tile::kPrefill32;  // no sum left open: shared memory is free for it
  const std::size_t blocks =
      std::size_t{divide_up(weight.spec().rows, 4 * kPanelRows)} * divide_up(num_tokens, tokens_of(large)) * num_weights;
  return num_tokens <= 32 || 2 * blocks < static_cast<std::size_t>(on.num_multiprocessors) ? Tile::kDecode32 : large;
}

void linear(const Launch& on, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, Rows out,
            std::size_t out_column) {
  require_fits(in, weight, out, out_column);
  require(bias == nullptr || weight.plan().num_roots == 1, weight, "a bias needs a single root");
  if (num_rows == 0 || weight.spec().rows == 0) return;
  const Tile tile = choose_tile(on, weight, num_rows);
  launch_tiles(on, in, num_rows, weight, bias, {}, tile, divide_up(num_rows, tokens_of(tile)), static_cast<float*>(out.data) + out_column,
               out.stride);
}

void grouped_linear(const Launch& on, Rows in, std::size_t num_rows, const CudaWeight& first, const Grouping& grouping, Tile tile,
                    std::size_t num_tiles, Rows out) {
  require_fits(in, first, out, 0);
  if (num_tiles == 0 || first.spec().rows == 0) return;
  launch_tiles(on, in, num_rows, first, nullptr, grouping, tile, static_cast<unsigned>(num_tiles), static_cast<float*>(out.data),
               out.stride);
}

namespace {

void embed_ids(const Launch& on, const CudaWeight* table, std::int32_t first_id, const std::int32_t* ids, std::uint32_t num_ids, bool adds,
               Rows out) {
  if (table != nullptr && (table->plan().num_roots != 1 || table->spec().leaves.size() != 1 || table->spec().columns != out.columns)) {
    throw std::invalid_argument("embed: '" + table->spec().name + "' is not a table of one leaf with the columns of the output");
  }
  if (num_ids == 0 || out.columns == 0) return;
  switch (table == nullptr ? DType::kF32 : table->spec().dtype) {
    case DType::kF32: return launch_embed<DType::kF32>(on, table, first_id, ids, num_ids, adds, out);
    case DType::kF16: return launch_embed<DType::kF16>(on, table, first_id, ids, num_ids, adds, out);
    case DType::kBF16: return launch_embed<DType::kBF16>(on, table, first_id, ids, num_ids, adds, out);
    case DType::kQ8_0: return launch_embed<DType::kQ8_0>(on, table, first_id, ids, num_ids, adds, out);
    case DType::kQ4_0: return launch_embed<DType::kQ4_0>(on, table, first_id, ids, num_ids, adds, out);
    case DType::kQ4_1: return launch_embed<DType::kQ4_1>(on, table, first_id, ids, num_ids, adds, out);
    default: return;  // there is no weight of another type (weight.cpp)
  }
}

}  // namespace

void embed(const Launch& on, const CudaWeight* table, std::int32_t first_id, const StepView& step, Rows out) {
  embed_ids(on, table, first_id, step.token_ids, step.num_tokens, false, out);
}

void add_positions(const Launch& on, const CudaWeight& table, std::size_t offset, const StepView& step, Rows x) {
  embed_ids(on, &table, -static_cast<std::int32_t>(offset), step.positions, step.num_tokens, true, x);
}

}  // namespace lockstep::device::cuda
