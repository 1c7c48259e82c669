#pragma once

/// The one header that kernels include: the part of CUDA C++ that they are written in. nvcc compiles it to PTX; without nvcc the emulator
/// of tests/simt runs the same kernels as fibers on the host (LOCKSTEP_SIMT). What kernels may do is in tests/simt/README.md. Beside CUDA's
/// own names:
///
///   LOCKSTEP_SHARED(type, name)          static shared memory; `type` may be an array: LOCKSTEP_SHARED(float[32], sums)
///   LOCKSTEP_DYNAMIC_SHARED(type, name)  `type* name`: the dynamic shared memory, 128-byte aligned
///   launch(kernel, grid, block, shared_bytes, stream, arguments...)
///   cp_async_16, cp_async_16_or_zero, cp_async_commit, cp_async_wait<N>
///   ldmatrix_x4, ldmatrix_x4_trans, mma_bf16_16816, mma_f16_16816
///   load_acquire_system, store_release_system, atomic_add_acq_rel
///   load_16, load_16_streaming, store_16
#if defined(__CUDACC__)

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace lockstep::device::cuda {

template <class T>
struct SharedType {
  using Type = T;
};

}  // namespace lockstep::device::cuda

#define LOCKSTEP_SHARED(type, name) __shared__ typename ::lockstep::device::cuda::SharedType<type>::Type name
#define LOCKSTEP_DYNAMIC_SHARED(type, name)                                     \
  extern __shared__ __align__(128) unsigned char lockstep_dynamic_shared_all[]; \
  type* name = reinterpret_cast<type*>(lockstep_dynamic_shared_all)

namespace lockstep::device::cuda {

/// Launches a kernel; shared_bytes of dynamic shared memory, up to what the device has. Errors of earlier launches may come back, too.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   Arguments&&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(shared_bytes));
    if (code != cudaSuccess) return code;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

__device__ __forceinline__ unsigned shared_address(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

/// Begins a copy of 16 bytes from global to shared memory, past L1. Both 16-byte aligned. The bytes are there, for this thread, after a
/// cp_async_wait; for others after a barrier as well.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

/// Not valid: 16 zero bytes, and `global` is not read.
__device__ __forceinline__ void cp_async_16_or_zero(void* shared, const void* global, bool valid) {
  const unsigned bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most N of this thread's committed groups are under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// Four 8x8 matrices of 16-bit values from shared memory: lane i names row i % 8 of matrix i / 8 (16 bytes, aligned). Lane l gets of each
/// matrix row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1. All lanes of the warp take part.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same matrices transposed: lane l gets column l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// d [16 x 8] fp32 += a [16 x 16] b [16 x 8], with the fragments of PTX's mma.m16n8k16: with g = lane / 4, t = 2 (lane % 4) lane holds
/// a[0..3] = (g, t..t+1), (g+8, t..), (g, t+8..), (g+8, t+8..); b0, b1 = (t..t+1, g), (t+8.., g); d = (g, t), (g, t+1), (g+8, t), (g+8,
/// t+1).
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The only load to spin on. What was written before the matching release, on any GPU of the machine or its host, is seen after it.
__device__ __forceinline__ unsigned load_acquire_system(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release_system(unsigned* address, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Adds, and orders all that stands before and after it within the GPU. @return the old value
__device__ __forceinline__ unsigned atomic_add_acq_rel(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

/// 16 bytes, aligned, in one load.
__device__ __forceinline__ uint4 load_16(const void* address) { return *static_cast<const uint4*>(address); }

/// The same for what is read once and not written while the kernel runs: not kept in L1.
__device__ __forceinline__ uint4 load_16_streaming(const void* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

__device__ __forceinline__ void store_16(void* address, uint4 value) { *static_cast<uint4*>(address) = value; }

}  // namespace lockstep::device::cuda

#else

#include "simt/portable_host.h"

#endif
