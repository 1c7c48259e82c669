#pragma once

#include <string>

#include <gtest/gtest.h>

#include "device/cuda/kernels/portable.h"
#include "simt/emulator_support.h"
#include "simt/simt.h"

namespace simt {

/// Launches kernels on a stream of its own.
class Emulator : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudaDeviceReset();
    cudaStreamDestroy(stream_);
    EmulatorTest::TearDown();
  }

  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, Arguments... arguments) {
    ASSERT_EQ(lockstep::device::cuda::launch(kernel, grid, block, shared_bytes, stream_, arguments...), cudaSuccess) << last_error();
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << last_error();
  }
  /// What the emulator says of a kernel that it stops.
  template <class... Parameters, class... Arguments>
  std::string error_of(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, Arguments... arguments) {
    EXPECT_EQ(lockstep::device::cuda::launch(kernel, grid, block, shared_bytes, stream_, arguments...), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
    const std::string text = last_error();
    cudaDeviceReset();
    return text;
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace simt
