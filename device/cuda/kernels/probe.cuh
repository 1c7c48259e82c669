#pragma once

#include "device/cuda/kernels/portable.h"

namespace lockstep::device::cuda {

inline constexpr unsigned kProbeThreads = 512;

/// Reads `count` times 16 bytes once, and does next to nothing with them: how fast memory can be read. Moves 16 * count bytes; count is a
/// multiple of 4 * the threads of the grid. `sink` is never written where some bit of the memory's words is clear in all of them; the
/// compiler does not know it.
__global__ void __launch_bounds__(kProbeThreads) read_all(const uint4* from, std::size_t count, unsigned* sink) {
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (std::size_t i = thread; i < count; i += 4 * threads) {
    uint4 values[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) values[j] = load_16_streaming(&from[i + j * threads]);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) sum |= values[j].x | values[j].y | values[j].z | values[j].w;
  }
  if (sum == 0xFFFFFFFFu) *sink = sum;
}

}  // namespace lockstep::device::cuda
