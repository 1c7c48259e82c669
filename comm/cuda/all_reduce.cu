#include <algorithm>

#include "comm/cuda/all_reduce.h"
#include "comm/cuda/kernels/all_reduce_norm.cuh"
#include "device/cuda/error.h"
#include "device/cuda/row_launch.h"

namespace lockstep::comm::cuda {
namespace {

using device::cuda::check;
using device::cuda::is_aligned;
using device::cuda::launch;

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// The stacks of all threads; at least one entry, so that there is dynamic shared memory at all.
std::size_t stack_bytes(const TreeProgram& program) { return (std::max(program.depth, 2u) - 1) * sizeof(float4) * reduce_threads; }

std::uint32_t roots_of(const TreeProgram& program, std::uint32_t rank) {
  std::uint32_t roots = 0;
  for (std::uint32_t i = 0; i < program.num_roots; ++i) roots += program.steps[i].rank == rank ? 1 : 0;
  return roots;
}

using ExchangeKernel = void (*)(IpcView, TreeProgram, Reduction);

/// As many blocks as there is work for: the same on all ranks.
void launch_exchange(ExchangeKernel kernel, const char* what, const Launch& where, const IpcView& view, const TreeProgram& program,
                     float* values, std::size_t count) {
  if (count == 0) return;
  const std::size_t blocks = std::min<std::size_t>(view.num_blocks, divided_up(count, reduce_threads * quad));
  const std::size_t columns = divided_up(divided_up(count, blocks), quad) * quad;
  const Reduction reduction{values, count, columns, roots_of(program, view.rank)};
  check(launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(reduce_threads), stack_bytes(program), where.stream, view, program,
               reduction),
        what);
}

}  // namespace

void reduce_one_shot(const Launch& where, const IpcView& view, const TreeProgram& program, float* values, std::size_t count) {
  launch_exchange(one_shot_kernel, "launching reduce_one_shot", where, view, program, values, count);
}

void reduce_two_shot(const Launch& where, const IpcView& view, const TreeProgram& program, float* values, std::size_t count) {
  launch_exchange(two_shot_kernel, "launching reduce_two_shot", where, view, program, values, count);
}

void reduce_one_shot_add_norm(const Launch& where, const IpcView& view, const TreeProgram& program, Rows partial, std::size_t num_rows,
                              Rows x, const float* bias, const device::Norm& norm, Rows out) {
  if (num_rows == 0) return;
  const Reduction reduction{static_cast<float*>(partial.data), num_rows * partial.columns, 0, roots_of(program, view.rank)};
  const device::cuda::NormArguments arguments = device::cuda::norm_arguments(x, nullptr, bias, norm, out);
  const unsigned blocks = static_cast<unsigned>(std::min<std::size_t>(view.num_blocks, num_rows));
  device::cuda::dispatch_norm(norm.kind, out.type, [&]<device::Norm::Kind kKind>(auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    check(launch(one_shot_norm_kernel<kKind, Element>, dim3(blocks), dim3(reduce_threads), stack_bytes(program), where.stream, view,
                 program, reduction, num_rows, arguments, device::cuda::mutable_rows<Element>(out)),
          "launching one_shot_norm_kernel");
  });
}

void sum_gathered(const Launch& where, const TreeProgram& program, const Gathered& roots, float* out, std::size_t count) {
  if (count == 0) return;
  const std::size_t blocks =
      std::min<std::size_t>(8 * static_cast<std::size_t>(where.num_multiprocessors), divided_up(count, reduce_threads * quad));
  const GatheredRoots gathered{roots.own,
                               roots.own_stride,
                               roots.others,
                               roots.stride,
                               static_cast<std::uint32_t>(roots.roots_per_rank),
                               static_cast<std::uint32_t>(roots.rank)};
  check(launch(sum_kernel, dim3(static_cast<unsigned>(blocks)), dim3(reduce_threads), stack_bytes(program), where.stream, program, gathered,
               out, count),
        "launching sum_gathered");
}

}  // namespace lockstep::comm::cuda
