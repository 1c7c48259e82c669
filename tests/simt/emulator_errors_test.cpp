// The emulator finds what a GPU would not forgive.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/kernels/portable.h"
#include "simt/emulator_launch.h"

namespace {

using namespace lockstep::device::cuda;
using simt::DeviceArray;
using simt::Emulator;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr unsigned kAll = 0xFFFFFFFFu;

__global__ void diverge_at_barriers() {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(Emulator, BarriersAtDifferentPlacesAreAnErrorThatNamesBoth) {
  EXPECT_THAT(error_of(diverge_at_barriers, dim3(1), dim3(32), 0),
              AllOf(HasSubstr("divergent __syncthreads"), HasSubstr("emulator_errors_test.cpp:"), HasSubstr("kernel diverge_at_barriers"),
                    HasSubstr("thread (7,0,0)")));
}

__global__ void wrong_mask(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(kAll, 1, 0);
}

TEST_F(Emulator, AMaskThatNamesLanesThatNeverComeIsAnError) {
  DeviceArray<int> out(32);
  EXPECT_THAT(error_of(wrong_mask, dim3(1), dim3(32), 0, out.data()),
              AllOf(HasSubstr("mask ffffffff"), HasSubstr("emulator_errors_test.cpp:")));
}

__global__ void not_in_mask() { __syncwarp(0xFFFFu); }

TEST_F(Emulator, ACallerOutsideOfTheMaskIsAnError) {
  EXPECT_THAT(error_of(not_in_mask, dim3(1), dim3(32), 0), HasSubstr("the calling lane is not in the mask 0000ffff"));
}

__global__ void wait_for_each_other() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp(threadIdx.x < 48 ? 0xFFFFu : 0xFFFF0000u);
    if (threadIdx.x == 40) __syncwarp(3u << 8);
    if (threadIdx.x != 41) __syncthreads();
    if (threadIdx.x == 41) __syncthreads();
  }
}

TEST_F(Emulator, ADeadlockIsAnErrorThatSaysWhoWaitsWhere) {
  const std::string text = error_of(wait_for_each_other, dim3(1), dim3(64), 0);
  EXPECT_THAT(text, AllOf(HasSubstr("kernel wait_for_each_other"), HasSubstr("emulator_errors_test.cpp:")));
}

__global__ void half_at_barrier_half_at_collective() {
  if (threadIdx.x < 16) __syncwarp(kAll);
  __syncthreads();
}

TEST_F(Emulator, ALaneThatSkipsACollectiveIsFoundAtTheDeadlock) {
  EXPECT_THAT(error_of(half_at_barrier_half_at_collective, dim3(1), dim3(32), 0),
              AllOf(HasSubstr("deadlock"), HasSubstr("__syncwarp"), HasSubstr("__syncthreads")));
}

__global__ void write_at(float* data, int at) { data[at] = 1; }

__global__ void write_shared_at(int at) {
  LOCKSTEP_SHARED(float[4], values);
  volatile float* data = values;
  data[at] = 1;
}

#if !defined(__SANITIZE_ADDRESS__)  // which ends the program there
TEST_F(Emulator, AWriteOutsideOfDeviceMemoryIsFoundAtTheKernelsEnd) {
  DeviceArray<float> data(10);
  EXPECT_THAT(error_of(write_at, dim3(1), dim3(1), 0, data.data(), 10),
              AllOf(HasSubstr("out of bounds"), HasSubstr("byte 40 of an allocation of 40 bytes"), HasSubstr("kernel write_at")));
  EXPECT_THAT(error_of(write_at, dim3(1), dim3(1), 0, data.data(), -1), HasSubstr("byte -4"));
}

TEST_F(Emulator, AWriteOutsideOfSharedMemoryIsFoundAtTheBlocksEnd) {
  EXPECT_THAT(error_of(write_shared_at, dim3(2), dim3(1), 0, 4), AllOf(HasSubstr("shared memory"), HasSubstr("kernel write_shared_at")));
}
#endif

__global__ void read_misaligned(const float* data, float* out) { store_16(out, load_16(data + 1)); }

TEST_F(Emulator, AMisalignedWideLoadIsAnError) {
  DeviceArray<float> data(8), out(4);
  EXPECT_THAT(error_of(read_misaligned, dim3(1), dim3(1), 0, data.data(), out.data()), HasSubstr("not aligned"));
}

__global__ void use_static_shared(float* out) {
  LOCKSTEP_SHARED(float[12289], values);
  values[threadIdx.x] = 1;
  out[0] = values[threadIdx.x];
}

TEST_F(Emulator, MoreSharedMemoryThanThereIsIsAnError) {
  DeviceArray<float> out(1);
  EXPECT_THAT(error_of(use_static_shared, dim3(1), dim3(1), 0, out.data()), HasSubstr("49156 bytes of static shared memory"));
  EXPECT_EQ(launch(write_at, dim3(1), dim3(1), 227 * 1024 + 1, stream_, nullptr, 0), cudaErrorInvalidValue);
}

TEST_F(Emulator, LaunchesThatNoGpuTakesAreRefused) {
  DeviceArray<float> out(1);
  EXPECT_EQ(launch(write_at, dim3(0), dim3(32), 0, stream_, out.data(), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(write_at, dim3(1), dim3(1025), 0, stream_, out.data(), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(write_at, dim3(1, 65536), dim3(1), 0, stream_, out.data(), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(write_at, dim3(1), dim3(1), 0, nullptr, out.data(), 0), cudaErrorInvalidResourceHandle);
}

struct Pointers {
  float* data;
  int at;
};
__global__ void write_through(Pointers pointers) { pointers.data[pointers.at] = 1; }

TEST_F(Emulator, PointersToTheHostOrToFreedMemoryAreRefused) {
  float host = 0;
  EXPECT_EQ(launch(write_at, dim3(1), dim3(1), 0, stream_, &host, 0), cudaErrorIllegalAddress);
  EXPECT_THAT(simt::last_error(), HasSubstr("memory of the host"));
  float* freed = nullptr;
  {
    DeviceArray<float> data(4);
    freed = data.data();
  }
  EXPECT_EQ(launch(write_through, dim3(1), dim3(1), 0, stream_, Pointers{freed, 0}), cudaErrorIllegalAddress);
  EXPECT_THAT(simt::last_error(), HasSubstr("not allocated"));
}

TEST_F(Emulator, AfterAnErrorTheContextIsLost) {
  DeviceArray<float> out(1);
  EXPECT_EQ(launch(not_in_mask, dim3(1), dim3(32), 0, stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(launch(write_at, dim3(1), dim3(1), 0, stream_, out.data(), 0), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

}  // namespace
