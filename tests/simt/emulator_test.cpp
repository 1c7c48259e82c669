// What the emulator does with kernels: it computes what a GPU does.
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/kernels/portable.h"
#include "simt/emulator_launch.h"

namespace {

using namespace lockstep::device::cuda;
using simt::DeviceArray;
using simt::Emulator;
using simt::Schedule;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr Schedule kSchedules[] = {Schedule::kForward, Schedule::kReverse, Schedule::kRandom, Schedule::kOneWarpFirst};

// ---------------------------------------------------------------------------------------------------------------- threads

__global__ void write_indices(uint4* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = {blockIdx.x, blockIdx.y * 100 + blockIdx.z, threadIdx.x,
                                                                threadIdx.y * 100 + threadIdx.z};
}

TEST_F(Emulator, EveryThreadOfEveryBlockRunsOnceWithItsIndices) {
  for (const bool shuffled : {false, true}) {
    simt::config().shuffle_blocks = shuffled;
    DeviceArray<uint4> out(2 * 3 * 2 * 5 * 2 * 3);
    run(write_indices, dim3(2, 3, 2), dim3(5, 2, 3), 0, out.data());
    const std::vector<uint4> indices = out.get();
    for (unsigned i = 0; i < indices.size(); ++i) {
      const unsigned block = i / 30, thread = i % 30;
      EXPECT_EQ(indices[i].x, block % 2);
      EXPECT_EQ(indices[i].y, block / 2 % 3 * 100 + block / 6);
      EXPECT_EQ(indices[i].z, thread % 5);
      EXPECT_EQ(indices[i].w, thread / 5 % 2 * 100 + thread / 10);
    }
  }
}

__global__ void shuffle_all(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_sync(kAll, lane, 5);
  out[32 + lane] = __shfl_xor_sync(kAll, lane, 6);
  out[64 + lane] = __shfl_down_sync(kAll, lane, 3);
  out[96 + lane] = __shfl_up_sync(kAll, lane, 2, 8);
  out[128 + lane] = __shfl_sync(kAll, lane, 1, 8);
}

TEST_F(Emulator, ShufflesMoveValuesBetweenLanes) {
  for (const Schedule schedule : kSchedules) {
    simt::config().schedule = schedule;
    DeviceArray<int> out(160);
    run(shuffle_all, dim3(1), dim3(32), 0, out.data());
    const std::vector<int> values = out.get();
    for (int lane = 0; lane < 32; ++lane) {
      const auto at = [&](int part) { return values[static_cast<std::size_t>(32 * part + lane)]; };
      EXPECT_EQ(at(0), 5);
      EXPECT_EQ(at(1), lane ^ 6);
      EXPECT_EQ(at(2), lane + 3 < 32 ? lane + 3 : lane);
      EXPECT_EQ(at(3), lane % 8 >= 2 ? lane - 2 : lane);
      EXPECT_EQ(at(4), lane / 8 * 8 + 1);
    }
  }
}

__global__ void vote_all(unsigned* out) {
  const unsigned lane = threadIdx.x;
  if (lane < 16) {  // half a warp by itself
    out[lane] = __ballot_sync(0xFFFFu, lane % 3 == 0);
  } else {
    out[lane] = __ballot_sync(0xFFFF0000u, lane % 2 == 0);
  }
  out[32 + lane] = static_cast<unsigned>(__any_sync(kAll, lane == 7) + 2 * __any_sync(kAll, lane > 40));
  out[64 + lane] = static_cast<unsigned>(__all_sync(kAll, lane < 32) + 2 * __all_sync(kAll, lane < 31));
  out[96 + lane] = __reduce_add_sync(kAll, lane);
  out[128 + lane] = static_cast<unsigned>(__reduce_max_sync(kAll, -static_cast<int>(lane) - 1));
  out[160 + lane] = __reduce_min_sync(kAll, lane + 3u);
}

TEST_F(Emulator, VotesAndReductionsSeeTheLanesOfTheMask) {
  DeviceArray<unsigned> out(192);
  run(vote_all, dim3(1), dim3(32), 0, out.data());
  const std::vector<unsigned> values = out.get();
  for (unsigned lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[lane], lane < 16 ? 0x9249u : 0x55550000u);
    EXPECT_EQ(values[32 + lane], 1u);
    EXPECT_EQ(values[64 + lane], 1u);
    EXPECT_EQ(values[96 + lane], 496u);
    EXPECT_EQ(static_cast<int>(values[128 + lane]), -1);
    EXPECT_EQ(values[160 + lane], 3u);
  }
}

__global__ void reverse_block(const float* in, float* out, bool with_barrier) {
  LOCKSTEP_DYNAMIC_SHARED(float, values);
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  values[threadIdx.x] = in[at];
  if (with_barrier) __syncthreads();
  out[at] = values[blockDim.x - 1 - threadIdx.x];
}

TEST_F(Emulator, SharedMemoryIsOfTheBlockUnderEverySchedule) {
  for (const Schedule schedule : kSchedules) {
    simt::config().schedule = schedule;
    simt::config().shuffle_blocks = schedule == Schedule::kRandom;
    DeviceArray<float> in(6 * 96), out(6 * 96);
    std::vector<float> values(6 * 96);
    std::iota(values.begin(), values.end(), 0.0f);
    in.set(values);
    run(reverse_block, dim3(6), dim3(96), 96 * sizeof(float), in.data(), out.data(), true);
    const std::vector<float> reversed = out.get();
    for (std::size_t i = 0; i < reversed.size(); ++i) EXPECT_EQ(reversed[i], values[i / 96 * 96 + 95 - i % 96]);
  }
}

#if !defined(__SANITIZE_THREAD__)  // which ends the program there
TEST_F(Emulator, SharedMemoryAbove48KiBNeedsTheAttributeWhichLaunchSets) {
  DeviceArray<float> in(16), out(16);
  in.set_all(1);
  run(reverse_block, dim3(1), dim3(16), 100 * 1024, in.data(), out.data(), true);
  EXPECT_THAT(out.get(), Each(1.0f));
}

TEST_F(Emulator, ARaceIsRevealedByASchedule) {
  int wrong = 0;
  for (const Schedule schedule : kSchedules) {
    simt::config().schedule = schedule;
    DeviceArray<float> in(96), out(96);
    in.set_all(1);
    run(reverse_block, dim3(1), dim3(96), 96 * sizeof(float), in.data(), out.data(), false);
    const std::vector<float> values = out.get();
    wrong += static_cast<int>(std::count_if(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
  }
  EXPECT_GT(wrong, 0);
}
#endif

__global__ void count_block(int* out) {
  out[threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0);
  out[64 + threadIdx.x] = __syncthreads_or(threadIdx.x == 63) + 2 * __syncthreads_and(threadIdx.x < 63);
}

TEST_F(Emulator, BarriersThatReduceGiveAllThreadsTheResult) {
  DeviceArray<int> out(128);
  run(count_block, dim3(1), dim3(64), 0, out.data());
  const std::vector<int> values = out.get();
  EXPECT_THAT(std::vector<int>(values.begin(), values.begin() + 64), Each(22));
  EXPECT_THAT(std::vector<int>(values.begin() + 64, values.end()), Each(1));
}

__global__ void some_return_early(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_F(Emulator, ThreadsThatReturnedDoNotCountAtBarriers) {
  DeviceArray<int> out(40);
  run(some_return_early, dim3(1), dim3(64), 0, out.data());
  EXPECT_THAT(out.get(), Each(1));
}

/// The last block to come adds up what the others left; the counter is left as it was.
__global__ void last_block_sums(const float* in, float* parts, unsigned* counter, float* out) {
  if (threadIdx.x == 0) parts[blockIdx.x] = in[blockIdx.x];
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomic_add_acq_rel(counter, 1) + 1 != gridDim.x) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
  *out = sum;
  *counter = 0;
}

TEST_F(Emulator, TheLastOfInterleavedBlocksSeesTheOthers) {
  for (const Schedule schedule : kSchedules) {
    for (const bool shuffled : {false, true}) {
      simt::config().schedule = schedule;
      simt::config().shuffle_blocks = shuffled;
      DeviceArray<float> in(20), parts(20), out(1);
      DeviceArray<unsigned> counter(1);
      in.set_all(2);
      counter.set_all(0);
      run(last_block_sums, dim3(20), dim3(32), 0, in.data(), parts.data(), counter.data(), out.data());
      EXPECT_EQ(out.get()[0], 40.0f);
      EXPECT_EQ(counter.get()[0], 0u);
    }
  }
}

__global__ void grid_barrier(unsigned* counter, int* out) {
  atomic_add_acq_rel(counter, 1);
  while (load_acquire_system(counter) < gridDim.x) {
  }
  out[blockIdx.x] = 1;
}

TEST_F(Emulator, BlocksThatSpinForBlocksOfTheSameGridGetThemUpToTheDevicesSize) {
  DeviceArray<unsigned> counter(1);
  counter.set_all(0);
  DeviceArray<int> out(64);
  run(grid_barrier, dim3(64), dim3(1), 0, counter.data(), out.data());
  EXPECT_THAT(out.get(), Each(1));
}

TEST_F(Emulator, AGridBarrierThatTheDeviceCannotHoldIsAnError) {
  simt::config().watchdog_seconds = 0.2;
  simt::config().multiprocessors = 1;
  DeviceArray<unsigned> counter(1);
  counter.set_all(0);
  DeviceArray<int> out(64);
  EXPECT_EQ(launch(grid_barrier, dim3(64), dim3(1), 0, stream_, counter.data(), out.data()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchTimeout);
  EXPECT_THAT(simt::last_error(), AllOf(HasSubstr("kernel grid_barrier"), HasSubstr("spinning")));
}

// ---------------------------------------------------------------------------------------------------------------- tensor cores

__device__ unsigned pack(float low, float high) {
  const __nv_bfloat16 a = __float2bfloat16(low), b = __float2bfloat16(high);
  return __builtin_bit_cast(unsigned short, a) | static_cast<unsigned>(__builtin_bit_cast(unsigned short, b)) << 16;
}

__device__ unsigned pack_half(float low, float high) {
  const __half a = __float2half(low), b = __float2half(high);
  return __builtin_bit_cast(unsigned short, a) | static_cast<unsigned>(__builtin_bit_cast(unsigned short, b)) << 16;
}

/// c [16, 8] = c + a [16, 16] b [16, 8], by the fragments that PTX's manual draws for mma.m16n8k16.
template <bool bf16>
__global__ void multiply_once(const float* a, const float* b, float* c) {
  const unsigned row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
  const auto pair = [](float low, float high) { return bf16 ? pack(low, high) : pack_half(low, high); };
  unsigned in[4];
  for (unsigned i = 0; i < 4; ++i) {
    const float* at = a + (row + i % 2 * 8) * 16 + column + i / 2 * 8;
    in[i] = pair(at[0], at[1]);
  }
  const unsigned b0 = pair(b[column * 8 + row], b[(column + 1) * 8 + row]);
  const unsigned b1 = pair(b[(column + 8) * 8 + row], b[(column + 9) * 8 + row]);
  float d[4] = {c[row * 8 + column], c[row * 8 + column + 1], c[(row + 8) * 8 + column], c[(row + 8) * 8 + column + 1]};
  if (bf16) {
    mma_bf16_16816(d, in, b0, b1);
  } else {
    mma_f16_16816(d, in, b0, b1);
  }
  c[row * 8 + column] = d[0];
  c[row * 8 + column + 1] = d[1];
  c[(row + 8) * 8 + column] = d[2];
  c[(row + 8) * 8 + column + 1] = d[3];
}

TEST_F(Emulator, MmaMultipliesAsPlainLoopsDo) {
  for (const bool bf16 : {true, false}) {
    std::vector<float> a(256), b(128), c(128);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 37 % 17) - 8);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 29 % 13) - 6) / 2;
    for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i);
    DeviceArray<float> device_a(256), device_b(128), device_c(128);
    device_a.set(a);
    device_b.set(b);
    device_c.set(c);
    run(bf16 ? multiply_once<true> : multiply_once<false>, dim3(1), dim3(32), 0, device_a.data(), device_b.data(), device_c.data());
    const std::vector<float> result = device_c.get();
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < 16; ++k) sum += a[i * 16 + k] * b[k * 8 + j];
        EXPECT_EQ(result[i * 8 + j], c[i * 8 + j] + sum) << i << ' ' << j;  // small integers and halves: exact in any order
      }
    }
  }
}

__global__ void load_matrices(unsigned* out, bool transposed, unsigned stride) {
  LOCKSTEP_DYNAMIC_SHARED(unsigned short, rows);
  for (unsigned i = threadIdx.x; i < 32 * 8; i += 32) rows[i / 8 * stride + i % 8] = static_cast<unsigned short>(i);
  __syncwarp();
  unsigned r[4];
  if (transposed) {
    ldmatrix_x4_trans(r, rows + threadIdx.x * stride);
  } else {
    ldmatrix_x4(r, rows + threadIdx.x * stride);
  }
  for (unsigned i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = r[i];
}

TEST_F(Emulator, LdmatrixSpreadsMatricesOverTheWarp) {
  for (const bool transposed : {false, true}) {
    DeviceArray<unsigned> out(128);
    run(load_matrices, dim3(1), dim3(32), 32 * 16, out.data(), transposed, 8u);
    const std::vector<unsigned> values = out.get();
    for (unsigned i = 0; i < 128; ++i) {
      const unsigned matrix = i / 32, row = i % 32 / 4, column = i % 4 * 2;
      const unsigned low = transposed ? column * 8 + row : row * 8 + column;
      const unsigned high = transposed ? (column + 1) * 8 + row : row * 8 + column + 1;
      EXPECT_EQ(values[i], (matrix * 64 + low) | (matrix * 64 + high) << 16);
    }
  }
}

TEST_F(Emulator, BankConflictsOfLdmatrixAreCounted) {
  DeviceArray<unsigned> out(128);
  run(load_matrices, dim3(1), dim3(32), 32 * 16, out.data(), false, 8u);
  EXPECT_EQ(simt::counters().ldmatrix_conflicts, 0u);
  run(load_matrices, dim3(1), dim3(32), 32 * 128, out.data(), false, 64u);  // all rows in the same banks
  EXPECT_EQ(simt::counters().ldmatrix, 2u);
  EXPECT_EQ(simt::counters().ldmatrix_conflicts, 4u * 7u);
}

// ---------------------------------------------------------------------------------------------------------------- cp.async

enum class WaitFor { kBoth, kFirst, kNone };

__global__ void copy_two_groups(const float* in, float* out, WaitFor wait) {
  LOCKSTEP_SHARED(float[8], values);
  cp_async_16(values, in);
  cp_async_commit();
  cp_async_16_or_zero(values + 4, in + 4, false);
  cp_async_commit();
  if (wait == WaitFor::kBoth) cp_async_wait<0>();
  if (wait == WaitFor::kFirst) cp_async_wait<1>();
  for (int i = 0; i < 8; ++i) out[i] = values[i];
  cp_async_wait<0>();
}

TEST_F(Emulator, CopiesArriveAtTheWaitForTheirGroupAndNotBefore) {
  DeviceArray<float> in(8), out(8);
  in.set_all(1);
  const auto arrived = [&](WaitFor wait) {
    run(copy_two_groups, dim3(1), dim3(1), 0, in.data(), out.data(), wait);
    const std::vector<float> values = out.get();
    return std::pair(values[3] == 1.0f, values[4] == 0.0f);
  };
  EXPECT_EQ(arrived(WaitFor::kBoth), std::pair(true, true));
  EXPECT_EQ(arrived(WaitFor::kFirst), std::pair(true, false));
  EXPECT_EQ(arrived(WaitFor::kNone), std::pair(false, false));
}

__global__ void never_wait(const float* in) {
  LOCKSTEP_SHARED(float[4], values);
  cp_async_16(values, in);
}

TEST_F(Emulator, ACopyThatIsNeverWaitedForIsAnError) {
  DeviceArray<float> in(4);
  EXPECT_THAT(error_of(never_wait, dim3(1), dim3(1), 0, in.data()), HasSubstr("1 cp.async copies that it never waited for"));
}

}  // namespace
