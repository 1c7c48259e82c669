#pragma once

#include "comm/cuda/kernels/all_reduce.cuh"
#include "device/cuda/kernels/rows.cuh"

namespace lockstep::comm::cuda {

/// One shot, a block a row: x += sum (+ bias), out = norm(x). `reduction` is of num_rows rows of norm.columns; its values are not
/// written. Bytes: those of one_shot_kernel, less 4 count written, and those of norm_rows with a delta. Additions: (R - 1) count.
template <device::Norm::Kind kKind, class Out>
__global__ void __launch_bounds__(reduce_threads, 1)
    one_shot_norm_kernel(const __grid_constant__ IpcView view, const __grid_constant__ TreeProgram program, Reduction reduction,
                         std::size_t num_rows, const __grid_constant__ device::cuda::NormArguments norm,
                         device::cuda::MutableRows<Out> outputs) {
  static_assert(reduce_threads == device::cuda::kRowThreads, "norm_row is for blocks of this size");
  LOCKSTEP_SHARED(unsigned, failed);
  LOCKSTEP_DYNAMIC_SHARED(float4, stacks);
  if (threadIdx.x == 0) failed = 0;
  unsigned epoch = view.epochs[blockIdx.x];
  const std::size_t room = view.slot_floats / program.max_roots_of_a_rank / quad * quad;
  for (std::size_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    float* x = norm.x.row(row);
    for (std::size_t begin = 0; begin < norm.columns; begin += room) {
      const std::size_t length = min(room, norm.columns - begin), stride = whole_quads(length);
      ++epoch;
      fill_slot(reduction, row * norm.columns + begin, length, slot_of(view, view.rank, epoch));
      if (!exchange(view, epoch, program.digest ^ static_cast<unsigned>(reduction.count) ^ 0x55555555u, failed)) return;
      for (std::size_t i = threadIdx.x * quad; i < length; i += std::size_t{blockDim.x} * quad) {
        const auto load = [&](TreeProgram::Step step) {
          return as_floats(load_16(slot_of(view, step.rank, epoch) + step.root * stride + i));
        };
        const float4 sum = tree_sum(program, stacks + threadIdx.x, blockDim.x, load);
        const float delta[4] = {sum.x, sum.y, sum.z, sum.w};
        const unsigned at = static_cast<unsigned>(begin + i);
        float v[4];
        device::cuda::load_four(x, at, norm.columns, norm.aligned, v);
        device::cuda::add_to(delta, norm.delta_bias, at, norm.columns, norm.aligned, v);
        device::cuda::store_four(x, at, norm.columns, norm.aligned, v);
      }
    }
    __syncthreads();  // the row is whole
    device::cuda::norm_row<kKind>(norm, x, nullptr, outputs.row(row));
  }
  if (threadIdx.x == 0) view.epochs[blockIdx.x] = epoch;
}

}  // namespace lockstep::comm::cuda
