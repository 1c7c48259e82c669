#pragma once

#include "comm/cuda/tree_program.h"
#include "device/cuda/kernels/portable.h"

/// Runs a TreeProgram on four columns a thread.
namespace lockstep::comm::cuda {

using device::cuda::load_16;
using device::cuda::store_16;

constexpr unsigned quad = 4;  // columns of a thread: 16 bytes

__device__ inline float4 as_floats(uint4 bits) {
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w));
}
__device__ inline uint4 as_bits(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}
__device__ inline float4 sum_of(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

/// Four floats, of which the first `left` are there. `wide`: they may be read at once.
__device__ inline float4 load_quad(const float* from, std::size_t left, bool wide) {
  if (wide && left >= quad) return as_floats(load_16(from));
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  v.x = from[0];
  if (left > 1) v.y = from[1];
  if (left > 2) v.z = from[2];
  if (left > 3) v.w = from[3];
  return v;
}

__device__ inline void store_quad(float* to, float4 v, std::size_t left, bool wide) {
  if (wide && left >= quad) {
    store_16(to, as_bits(v));
    return;
  }
  to[0] = v.x;
  if (left > 1) to[1] = v.y;
  if (left > 2) to[2] = v.z;
  if (left > 3) to[3] = v.w;
}

/// Rows that begin at `from` and at multiples of `stride` floats behind it can be read 16 bytes at a time.
__device__ inline bool is_wide(const void* from, std::size_t stride) {
  return reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && stride % quad == 0;
}

/// The tree's sum. `stack`: this thread's first entry in shared memory, `stride` entries from one to the next, program.depth - 1 of them;
/// the top of the stack is in registers. `load(step)`: this thread's four columns of a root. Eight roots are read ahead, so that the
/// memory of several peers answers at the same time.
template <class Load>
__device__ inline float4 tree_sum(const TreeProgram& program, float4* stack, unsigned stride, const Load& load) {
  constexpr unsigned ahead = 8;
  float4 top = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  unsigned below = 0;  // values on the stack in shared memory
  for (unsigned first = 0; first < program.num_roots; first += ahead) {
    float4 loaded[ahead];
#pragma unroll
    for (unsigned i = 0; i < ahead; ++i) {
      if (first + i < program.num_roots) loaded[i] = load(program.steps[first + i]);
    }
#pragma unroll
    for (unsigned i = 0; i < ahead; ++i) {
      if (first + i >= program.num_roots) continue;
      if (first + i > 0) stack[stride * below++] = top;
      top = loaded[i];
      for (unsigned merges = program.steps[first + i].merges; merges > 0; --merges) top = sum_of(stack[stride * --below], top);
    }
  }
  return top;
}

}  // namespace lockstep::comm::cuda
