#pragma once

#include "comm/cuda/ipc_view.h"
#include "comm/cuda/tree_program.h"
#include "device/cuda/views.h"

/// The kernels of all_reduce. Each launches one on launch.stream and does not wait. `values` holds this rank's roots [roots, count]; its
/// first `count` floats receive the sum, the same bits as comm::tree_sum. @throws device::cuda::CudaError
namespace lockstep::comm::cuda {

using device::cuda::Launch;
using device::cuda::Rows;

/// Floats of a slot with which every tree can be summed: a piece of four columns at least.
inline constexpr std::size_t min_slot_floats = 4 * 256;

/// Over peers whose memory is mapped: every rank adds up everything (one round), or its slice (two rounds).
void reduce_one_shot(const Launch& launch, const IpcView& view, const TreeProgram& program, float* values, std::size_t count);
void reduce_two_shot(const Launch& launch, const IpcView& view, const TreeProgram& program, float* values, std::size_t count);

/// reduce_one_shot of num_rows rows, then x += sum (+ bias), out = norm(x), in one kernel: the bits of the two. `partial` is not
/// written.
void reduce_one_shot_add_norm(const Launch& launch, const IpcView& view, const TreeProgram& program, Rows partial, std::size_t num_rows,
                              Rows x, const float* bias, const device::Norm& norm, Rows out);

/// out[i] = sum, i < count. This rank's roots are at own[root * own_stride + i], those of rank q at
/// others[(q * roots_per_rank + root) * stride + i]. `out` may be `own`.
struct Gathered {
  int rank = 0;
  const float* own = nullptr;
  std::size_t own_stride = 0;
  const float* others = nullptr;
  std::size_t stride = 0;
  std::size_t roots_per_rank = 1;
};
void sum_gathered(const Launch& launch, const TreeProgram& program, const Gathered& roots, float* out, std::size_t count);

}  // namespace lockstep::comm::cuda
