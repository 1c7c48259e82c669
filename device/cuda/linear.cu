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

template <DType kType, int kTiles>
void launch_decode(const Launch& launch_on, const MmaLinear& args, std::uint32_t levels) {
  using Shape = DecodeShape<kType, kTiles>;
  static_assert(Shape::shared_bytes(kMaxLevels) <= kSharedLimit);
  const dim3 grid(divide_up(args.num_tokens, Shape::kTokens), divide_up(args.num_rows, kPanelRows));
  check(launch(linear_decode_kernel<kType, kTiles>, grid, dim3(32 * Shape::kWarps), Shape::shared_bytes(levels), launch_on.stream, args),
        "launching a matrix product for few tokens");
}

template <DType kType, int kTiles>
void launch_prefill(const Launch& launch_on, const MmaLinear& args, std::uint32_t levels) {
  using Shape = PrefillShape<kType, kTiles>;
  static_assert(Shape::shared_bytes(kTiles > 4 ? 0 : kMaxLevels) <= kSharedLimit);
  const dim3 grid(divide_up(args.num_tokens, Shape::kTokens), divide_up(args.num_rows, Shape::kRows));
  check(launch(linear_prefill_kernel<kType, kTiles>, grid, dim3(Shape::kThreads), Shape::shared_bytes(levels), launch_on.stream, args),
        "launching a matrix product for many tokens");
}

/// The large tile where it fills half of the GPU, else the small one: more blocks, each with its columns spread over 8 warps.
template <DType kType>
void launch_mma(const Launch& on, const MmaLinear& args, std::uint32_t levels) {
  const std::size_t tokens = args.num_tokens;
  if (tokens <= 8) return launch_decode<kType, 1>(on, args, levels);
  if (tokens <= 16) return launch_decode<kType, 2>(on, args, levels);
  const bool wide = levels == 0;  // no sum is left open: shared memory is free for the larger tile
  const std::size_t blocks = std::size_t{divide_up(args.num_rows, 4 * kPanelRows)} * divide_up(tokens, wide ? 64 : 32);
  if (tokens <= 32 || 2 * blocks < static_cast<std::size_t>(on.num_multiprocessors)) return launch_decode<kType, 4>(on, args, levels);
  if (wide) return launch_prefill<kType, 8>(on, args, levels);
  launch_prefill<kType, 4>(on, args, levels);
}

template <unsigned kPanels, unsigned kRows, unsigned kTokens, unsigned kTokenThreads>
void launch_exact(const Launch& on, const ExactLinear& args, std::uint32_t levels) {
  using Shape = ExactShape<kPanels, kRows, kTokens, kTokenThreads>;
  static_assert(Shape::shared_bytes(kMaxLevels) <= kSharedLimit);
  const dim3 grid(divide_up(args.num_tokens, Shape::kTileTokens), divide_up(args.num_rows, kPanels * kPanelRows));
  check(launch(linear_exact_kernel<kPanels, kRows, kTokens, kTokenThreads>, grid, dim3(Shape::kThreads), Shape::shared_bytes(levels),
               on.stream, args),
        "launching an exact matrix product");
}

void linear_exact(const Launch& on, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, float* out,
                  std::size_t out_stride) {
  const SlicePlan& plan = weight.plan();
  ExactLinear args;
  args.weights = static_cast<const float*>(weight.data());
  args.leaves = weight.slices();
  args.in = static_cast<const float*>(in.data);
  args.out = out;
  args.bias = bias;
  args.in_stride = in.stride;
  args.out_stride = out_stride;
  args.num_leaves = static_cast<std::uint32_t>(plan.slices.size());
  args.num_columns = static_cast<std::uint32_t>(weight.spec().columns);
  args.num_tokens = static_cast<std::uint32_t>(num_rows);
  args.num_rows = static_cast<std::uint32_t>(weight.spec().rows);
  if (num_rows <= 16) return launch_exact<1, 1, 4, 1>(on, args, plan.num_levels);
  launch_exact<2, 4, 8, 8>(on, args, plan.num_levels);
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

void linear(const Launch& on, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, Rows out,
            std::size_t out_column) {
  const WeightSpec& spec = weight.spec();
  const SlicePlan& plan = weight.plan();
  require(in.type == activation_for(spec.dtype), weight, "activations of the wrong type");
  require(in.columns == spec.columns, weight, "its columns and those of the activations differ");
  require(out.type == Activation::kFloat32 && out_column + spec.rows <= out.columns, weight, "no room for its rows in the output");
  require(bias == nullptr || plan.num_roots == 1, weight, "a bias needs a single root");
  if (num_rows == 0 || spec.rows == 0) return;
  float* to = static_cast<float*>(out.data) + out_column;
  if (spec.dtype == DType::kF32) return linear_exact(on, in, num_rows, weight, bias, to, out.stride);

  MmaLinear args;
  args.weights = static_cast<const unsigned char*>(weight.data());
  args.slices = weight.slices();
  args.in = static_cast<const std::uint16_t*>(in.data);
  args.out = to;
  args.bias = bias;
  args.in_stride = in.stride;
  args.out_stride = out.stride;
  args.num_slices = static_cast<std::uint32_t>(plan.slices.size());
  args.num_units = plan.num_units;
  args.num_tokens = static_cast<std::uint32_t>(num_rows);
  args.num_rows = static_cast<std::uint32_t>(spec.rows);
  args.vectors = plan.leaves_are_vectors && in.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(in.data) % 16 == 0;
  switch (spec.dtype) {
    case DType::kF16: return launch_mma<DType::kF16>(on, args, plan.num_levels);
    case DType::kBF16: return launch_mma<DType::kBF16>(on, args, plan.num_levels);
    case DType::kQ8_0: return launch_mma<DType::kQ8_0>(on, args, plan.num_levels);
    case DType::kQ4_0: return launch_mma<DType::kQ4_0>(on, args, plan.num_levels);
    case DType::kQ4_1: return launch_mma<DType::kQ4_1>(on, args, plan.num_levels);
    default: break;  // F32 is done above, and there is no weight of another type (weight.cpp)
  }
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
