#include <gtest/gtest.h>

#include "device/cuda/kernels/portable.h"
#include "simt/simt.h"

namespace {

using namespace lockstep::device::cuda;

__global__ void sum_block(const float* in, float* out) {
  LOCKSTEP_SHARED(float[32], sums);
  float value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) total += sums[i];
    out[blockIdx.x] = total;
  }
}

TEST(Emulator, RunsAKernel) {
  float* in = nullptr;
  float* out = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&in), 4096), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&out), 4096), cudaSuccess);
  std::vector<float> host(1024, 1.0f);
  ASSERT_EQ(cudaMemcpy(in, host.data(), 4096, cudaMemcpyHostToDevice), cudaSuccess);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(launch(sum_block, dim3(4), dim3(256), 0, stream, in, out), cudaSuccess) << simt::last_error();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(host.data(), out, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(host[i], 256.0f);
  EXPECT_EQ(simt::counters().kernels["sum_block"], 1u);
  cudaStreamDestroy(stream);
  cudaFree(in);
  cudaFree(out);
}

}  // namespace
