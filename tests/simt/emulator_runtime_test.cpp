// The stand-in for CUDA's runtime: orders of streams and graphs, memory, failures on order, counters.
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/kernels/portable.h"
#include "simt/emulator_support.h"
#include "simt/simt.h"

namespace {

using namespace lockstep::device::cuda;
using simt::DeviceArray;
using simt::GraphOrder;
using simt::StreamOrder;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr StreamOrder kOrders[] = {StreamOrder::kEager, StreamOrder::kLazy, StreamOrder::kLastFirst, StreamOrder::kRandom};

__global__ void set_all(float* data, unsigned count, float value) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) data[at] = value;
}

__global__ void add_one(float* data) { data[threadIdx.x] += 1; }

__global__ void double_all(float* data) { data[threadIdx.x] *= 2; }

__global__ void wait_for_flag(const unsigned* flag, float* out) {
  while (load_acquire_system(flag) == 0) {
  }
  *out = 1;
}

__global__ void set_flag(unsigned* flag) { store_release_system(flag, 1); }

class Runtime : public simt::EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    ASSERT_EQ(cudaStreamCreateWithFlags(&first_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudaDeviceReset();
    cudaStreamDestroy(first_);
    cudaStreamDestroy(second_);
    EmulatorTest::TearDown();
  }
  cudaGraphExec_t record(const std::function<void()>& body) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    body();
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess) << simt::last_error();
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }

  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
};

// ---------------------------------------------------------------------------------------------------------------- streams

/// second_: data = 3. first_: data += 1, after it if there is an event.
float set_and_add(cudaStream_t first, cudaStream_t second, bool with_event) {
  DeviceArray<float> data(1);
  data.set_all(0);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(launch(set_all, dim3(1), dim3(1), 0, second, data.data(), 1u, 3.0f), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, second), cudaSuccess);
  if (with_event) {
    EXPECT_EQ(cudaStreamWaitEvent(first, event, 0), cudaSuccess);
  }
  EXPECT_EQ(launch(add_one, dim3(1), dim3(1), 0, first, data.data()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  return data.get()[0];
}

TEST_F(Runtime, AnEventOrdersStreamsInEveryOrder) {
  for (const StreamOrder order : kOrders) {
    simt::config().stream_order = order;
    EXPECT_EQ(set_and_add(first_, second_, true), 4.0f);
    EXPECT_EQ(set_and_add(second_, first_, true), 4.0f);
  }
}

TEST_F(Runtime, AMissingWaitIsRevealedByAnOrder) {
  int wrong = 0;
  for (const StreamOrder order : kOrders) {
    simt::config().stream_order = order;
    wrong += set_and_add(first_, second_, false) != 4.0f;
    wrong += set_and_add(second_, first_, false) != 4.0f;
  }
  EXPECT_GT(wrong, 0);
}

TEST_F(Runtime, PinnedMemoryIsReadWhenTheCopyRuns) {
  simt::config().stream_order = StreamOrder::kLazy;
  float* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(float), cudaHostAllocDefault), cudaSuccess);
  DeviceArray<float> data(1);
  *pinned = 1;
  EXPECT_EQ(cudaMemcpyAsync(data.data(), pinned, sizeof(float), cudaMemcpyHostToDevice, first_), cudaSuccess);
  *pinned = 2;  // too early
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(data.get()[0], 2.0f);
  float pageable = 5;
  EXPECT_EQ(cudaMemcpyAsync(data.data(), &pageable, sizeof(float), cudaMemcpyHostToDevice, first_), cudaSuccess);
  pageable = 6;  // staged before
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(data.get()[0], 5.0f);
  EXPECT_EQ(simt::counters().pageable_copies, 1u);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Runtime, ACopyOnTheDefaultStreamDoesNotWaitForNonBlockingStreams) {
  simt::config().stream_order = StreamOrder::kLazy;
  DeviceArray<float> data(1);
  data.set_all(0);
  EXPECT_EQ(launch(add_one, dim3(1), dim3(1), 0, first_, data.data()), cudaSuccess);
  EXPECT_EQ(data.get()[0], 0.0f);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(data.get()[0], 1.0f);
}

TEST_F(Runtime, AKernelThatSpinsLeavesTheHostAndOtherStreamsFree) {
  for (const StreamOrder order : kOrders) {
    simt::config().stream_order = order;
    DeviceArray<unsigned> flag(1);
    DeviceArray<float> out(1);
    flag.set_all(0);
    EXPECT_EQ(launch(wait_for_flag, dim3(1), dim3(1), 0, first_, flag.data(), out.data()), cudaSuccess);
    EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
    EXPECT_EQ(launch(set_flag, dim3(1), dim3(1), 0, second_, flag.data()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess) << simt::last_error();
    EXPECT_EQ(out.get()[0], 1.0f);
  }
}

TEST_F(Runtime, AKernelThatSpinsForEverIsNamedWhenTimeIsUp) {
  simt::config().watchdog_seconds = 0.1;
  DeviceArray<unsigned> flag(1);
  DeviceArray<float> out(1);
  flag.set_all(0);
  EXPECT_EQ(launch(wait_for_flag, dim3(1), dim3(1), 0, first_, flag.data(), out.data()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorLaunchTimeout);
  EXPECT_THAT(simt::last_error(), HasSubstr("kernel wait_for_flag"));
}

TEST_F(Runtime, HostFunctionsRunInTheirTurn) {
  simt::config().stream_order = StreamOrder::kLazy;
  DeviceArray<float> data(1);
  data.set_all(1);
  float seen = 0;
  struct Look {
    const float* from;
    float* to;
  } look{data.data(), &seen};
  EXPECT_EQ(launch(add_one, dim3(1), dim3(1), 0, first_, data.data()), cudaSuccess);
  const auto copy = [](void* argument) { *static_cast<Look*>(argument)->to = *static_cast<Look*>(argument)->from; };
  EXPECT_EQ(cudaLaunchHostFunc(first_, copy, &look), cudaSuccess);
  EXPECT_EQ(launch(add_one, dim3(1), dim3(1), 0, first_, data.data()), cudaSuccess);
  EXPECT_EQ(seen, 0.0f);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(seen, 2.0f);
}

// ---------------------------------------------------------------------------------------------------------------- graphs

TEST_F(Runtime, AGraphDoesWhatItsStreamsDidWhateverTheOrder) {
  DeviceArray<float> a(4), b(4);
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  cudaGraphExec_t graph = record([&] {
    launch(add_one, dim3(1), dim3(4), 0, first_, a.data());
    cudaEventRecord(fork, first_);
    cudaStreamWaitEvent(second_, fork, 0);
    launch(double_all, dim3(1), dim3(4), 0, second_, a.data());
    launch(add_one, dim3(1), dim3(4), 0, first_, b.data());
    cudaEventRecord(join, second_);
    cudaStreamWaitEvent(first_, join, 0);
    cudaMemcpyAsync(b.data(), a.data(), 2 * sizeof(float), cudaMemcpyDeviceToDevice, first_);
  });
  for (const GraphOrder order : {GraphOrder::kCaptured, GraphOrder::kRandom}) {
    simt::config().graph_order = order;
    for (int i = 0; i < 5; ++i) {
      a.set_all(1);
      b.set_all(7);
      EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
      EXPECT_THAT(a.get(), Each(4.0f));
      EXPECT_EQ(b.get(), (std::vector<float>{4, 4, 8, 8}));
    }
  }
  EXPECT_EQ(simt::counters().launches, 0u);
  EXPECT_EQ(simt::counters().graph_launches, 10u);
  EXPECT_EQ(simt::counters().kernels["add_one"], 20u);
  cudaGraphExecDestroy(graph);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
}

TEST_F(Runtime, AMissingDependencyInAGraphIsRevealedByAnOrder) {
  DeviceArray<float> a(1);
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaEventCreate(&fork);
  cudaEventCreate(&join);
  cudaGraphExec_t graph = record([&] {
    cudaEventRecord(fork, first_);
    cudaStreamWaitEvent(second_, fork, 0);
    launch(add_one, dim3(1), dim3(1), 0, first_, a.data());
    launch(double_all, dim3(1), dim3(1), 0, second_, a.data());  // beside it
    cudaEventRecord(join, second_);
    cudaStreamWaitEvent(first_, join, 0);
  });
  simt::config().graph_order = GraphOrder::kRandom;
  int add_first = 0, double_first = 0;
  for (int i = 0; i < 40; ++i) {
    a.set_all(1);
    EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    (a.get()[0] == 4.0f ? add_first : double_first) += 1;
  }
  EXPECT_GT(add_first, 0);
  EXPECT_GT(double_first, 0);
  cudaGraphExecDestroy(graph);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
}

TEST_F(Runtime, WhatACaptureForbidsBreaksIt) {
  for (int forbidden = 0; forbidden < 4; ++forbidden) {
    ASSERT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    void* memory = nullptr;
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    if (forbidden == 0) {
      EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    }
    if (forbidden == 1) {
      EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorStreamCaptureUnsupported);
    }
    if (forbidden == 2) {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    }
    if (forbidden == 3) {
      EXPECT_EQ(cudaEventRecord(event, second_), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(first_, event, 0), cudaErrorStreamCaptureIsolation);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated) << forbidden;
    EXPECT_EQ(graph, nullptr);
    cudaEventDestroy(event);
  }
}

TEST_F(Runtime, AStreamThatIsNotJoinedBackBreaksTheCapture) {
  DeviceArray<float> a(1);
  cudaEvent_t fork = nullptr;
  cudaEventCreate(&fork);
  ASSERT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaEventRecord(fork, first_);
  cudaStreamWaitEvent(second_, fork, 0);
  launch(add_one, dim3(1), dim3(1), 0, second_, a.data());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
  cudaEventDestroy(fork);
}

TEST_F(Runtime, AGraphThatUsesFreedMemoryFails) {
  cudaGraphExec_t graph = nullptr;
  {
    DeviceArray<float> a(1);
    graph = record([&] { launch(add_one, dim3(1), dim3(1), 0, first_, a.data()); });
  }
  EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaErrorLaunchFailure);
  EXPECT_THAT(simt::last_error(), HasSubstr("not allocated"));
  cudaGraphExecDestroy(graph);
}

// ---------------------------------------------------------------------------------------------------------------- memory

TEST_F(Runtime, AllocationsAreFilledWithNansAlignedAndLimited) {
  simt::config().memory_bytes = 1 << 20;
  std::size_t free_bytes = 0, total_bytes = 0;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
  std::vector<unsigned char> bytes(1000);
  EXPECT_EQ(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_THAT(bytes, Each(0xFF));
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(total_bytes, std::size_t{1} << 20);
  EXPECT_EQ(free_bytes, total_bytes - 1000);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&more, 1 << 20), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
}

TEST_F(Runtime, CopiesAreCheckedAgainstTheirAllocations) {
  DeviceArray<float> data(4);
  std::vector<float> host(8);
  EXPECT_EQ(cudaMemcpy(data.data(), host.data(), 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), data.data() + 1, 16, cudaMemcpyDeviceToHost, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(data.data(), host.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemsetAsync(data.data(), 0, 17, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(data.data(), host.data(), 16, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(Runtime, MemoryIsSharedWithAnotherProcessByItsHandle) {
  if (const char* text = simt::SecondProcess::value(); text != nullptr) {
    cudaIpcMemHandle_t handle;
    for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
      handle.reserved[i] = static_cast<char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
    }
    float* data = nullptr;
    ASSERT_EQ(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&data), handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
    EXPECT_EQ(launch(add_one, dim3(1), dim3(4), 0, first_, data), cudaSuccess) << simt::last_error();
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
    return;
  }
  DeviceArray<float> data(4);
  data.set({1, 2, 3, 4});
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, data.data() + 1), cudaSuccess);  // names the allocation, not the element
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  { const simt::SecondProcess other(text); }
  EXPECT_EQ(data.get(), (std::vector<float>{2, 3, 4, 5}));
}

TEST_F(Runtime, RanksAsThreadsHaveTheirOwnDevicesAndSeeEachOthersMemory) {
  DeviceArray<float> data(4);
  data.set_all(1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::thread other([&] {
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 0);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    EXPECT_EQ(launch(add_one, dim3(1), dim3(4), 0, stream, data.data()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
  });
  other.join();
  EXPECT_THAT(data.get(), Each(2.0f));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

/// Two threads, a flag in memory: the kernels of ranks run at the same time.
TEST_F(Runtime, KernelsOfTwoRanksMeet) {
  DeviceArray<unsigned> flag(1);
  DeviceArray<float> out(1);
  flag.set_all(0);
  std::thread other([&] {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(launch(set_flag, dim3(1), dim3(1), 0, stream, flag.data()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
  });
  EXPECT_EQ(launch(wait_for_flag, dim3(1), dim3(1), 0, first_, flag.data(), out.data()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(out.get()[0], 1.0f);
  other.join();
}

// ---------------------------------------------------------------------------------------------------------------- failures

TEST_F(Runtime, CallsFailOnOrderOnce) {
  simt::fail_call("cudaMalloc", 2);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  void* refused = nullptr;
  EXPECT_EQ(cudaMalloc(&refused, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  simt::fail_call("cudaStreamSynchronize", 1, cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorECCUncorrectable);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable");
  simt::fail_call("cudaLaunchKernel", 1);
  DeviceArray<float> data(1);
  EXPECT_EQ(launch(add_one, dim3(1), dim3(1), 0, first_, data.data()), cudaErrorLaunchOutOfResources);
}

TEST_F(Runtime, DevicesAreAsManyAsTheSettingsSay) {
  int count = -1;
  simt::config().device_count = 2;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  simt::config().device_count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  simt::fail_call("cudaGetDeviceCount");
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
}

TEST_F(Runtime, CountersTellWhatWasDone) {
  DeviceArray<float> data(4);
  std::vector<float> host(4);
  cudaMemcpyAsync(data.data(), host.data(), 16, cudaMemcpyHostToDevice, first_);
  launch(add_one, dim3(1), dim3(4), 0, first_, data.data());
  launch(set_all, dim3(2), dim3(2), 0, first_, data.data(), 4u, 1.0f);
  cudaMemcpyAsync(host.data(), data.data(), 16, cudaMemcpyDeviceToHost, first_);
  cudaStreamSynchronize(first_);
  const simt::Counters counters = simt::counters();
  EXPECT_EQ(counters.launches, 2u);
  EXPECT_EQ(counters.host_to_device, 1u);
  EXPECT_EQ(counters.device_to_host, 1u);
  EXPECT_EQ(counters.synchronisations, 1u);
  EXPECT_EQ(counters.allocations, 1u);
  EXPECT_THAT(counters.kernels, ::testing::UnorderedElementsAre(::testing::Pair("add_one", 1u), ::testing::Pair("set_all", 1u)));
}

}  // namespace
