// What device/cuda/kernels/portable.h wraps, instruction by instruction, against plain loops on the host: on real GPUs the text of the PTX,
// without one the emulator. The first thing to run on a new machine: nothing else can be right where this is wrong.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/cuda/plugin.h"
#include "device/cuda/kernels/portable.h"
#include "device/cuda/memory.h"
#include "device/dtype.h"
#if defined(LOCKSTEP_SIMT)
#include "tests/simt/simt.h"
#endif

extern "C" const lockstep::comm::CudaPlugin* lockstep_cuda_plugin();

namespace {

using namespace lockstep::device::cuda;
using lockstep::device::bfloat16_to_float;
using lockstep::device::float_to_bfloat16;
using lockstep::device::float_to_half;
using lockstep::device::half_to_float;

constexpr unsigned kWarp = 32;

class Wrappers : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(LOCKSTEP_SIMT)
    simt::reset();
#endif
    std::string problem;
    if (lockstep_cuda_plugin()->count_devices(problem) == 0) GTEST_SKIP() << "there is no GPU to test: " << problem;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
#if defined(LOCKSTEP_SIMT)
    EXPECT_EQ(simt::last_error(), "");
#endif
  }

  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), unsigned grid, unsigned block, std::size_t shared_bytes, Arguments... arguments) {
    check(launch(kernel, dim3(grid), dim3(block), shared_bytes, stream_, arguments...), "launching");
    check(cudaStreamSynchronize(stream_), "running a kernel");
  }

  cudaStream_t stream_ = nullptr;
};

template <class T>
DeviceMemory upload(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T), "a test");
  check(cudaMemcpy(memory.data(), values.data(), memory.size_bytes(), cudaMemcpyHostToDevice), "uploading");
  return memory;
}

template <class T>
std::vector<T> download(const DeviceMemory& memory) {
  std::vector<T> values(memory.size_bytes() / sizeof(T));
  check(cudaMemcpy(values.data(), memory.data(), memory.size_bytes(), cudaMemcpyDeviceToHost), "downloading");
  return values;
}

std::vector<unsigned> numbers(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<unsigned> values(count);
  for (unsigned& value : values) value = static_cast<unsigned>(generator());
  return values;
}

// ------------------------------------------------------------------------------------------------------------ asynchronous copies

constexpr unsigned kCopyThreads = 128;

__global__ void copy_and_read_neighbour(const uint4* from, uint4* to) {
  LOCKSTEP_SHARED(uint4[kCopyThreads], stage);
  cp_async_16(&stage[threadIdx.x], &from[threadIdx.x]);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  to[threadIdx.x] = stage[(threadIdx.x + 33) % kCopyThreads];
}

TEST_F(Wrappers, AnAsynchronousCopyIsSeenByOtherThreadsBehindWaitAndBarrier) {
  const std::vector<unsigned> values = numbers(4 * kCopyThreads, 1);
  const DeviceMemory from = upload(values), to(from.size_bytes(), "a test");
  run(copy_and_read_neighbour, 1, kCopyThreads, 0, from.as<uint4>(), to.as<uint4>());
  const std::vector<unsigned> found = download<unsigned>(to);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], values[(i + 4 * 33) % values.size()]) << i;
}

/// What is not valid points behind the end, as it does in kernels at the edge of a matrix.
__global__ void copy_or_zero(const uint4* from, unsigned count, uint4* to) {
  LOCKSTEP_SHARED(uint4[kCopyThreads], stage);
  stage[threadIdx.x] = make_uint4(7, 7, 7, 7);
  const bool valid = threadIdx.x < count && threadIdx.x % 3 != 1;
  cp_async_16_or_zero(&stage[threadIdx.x], valid ? &from[threadIdx.x] : &from[threadIdx.x + (1u << 20)], valid);
  cp_async_commit();
  cp_async_wait<0>();
  to[threadIdx.x] = stage[threadIdx.x];
}

TEST_F(Wrappers, ACopyThatIsNotValidWritesZeros) {
  const unsigned count = 77;
  const std::vector<unsigned> values = numbers(4 * count, 2);
  const DeviceMemory from = upload(values), to(kCopyThreads * sizeof(uint4), "a test");
  run(copy_or_zero, 1, kCopyThreads, 0, from.as<uint4>(), count, to.as<uint4>());
  const std::vector<unsigned> found = download<unsigned>(to);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i / 4 < count && i / 4 % 3 != 1 ? values[i] : 0u) << i;
}

constexpr unsigned kGroups = 4;

/// A ring of copies, of which only the oldest is waited for: each thread reads what it copied itself.
__global__ void pipeline(const uint4* from, unsigned rounds, uint4* to) {
  LOCKSTEP_SHARED(uint4[kGroups * kCopyThreads], stage);
  const auto slot = [&](unsigned round) { return &stage[round % kGroups * kCopyThreads + threadIdx.x]; };
  for (unsigned round = 0; round < kGroups - 1; ++round) {
    cp_async_16(slot(round), &from[round * kCopyThreads + threadIdx.x]);
    cp_async_commit();
  }
  for (unsigned round = 0; round < rounds; ++round) {
    cp_async_wait<kGroups - 2>();
    to[round * kCopyThreads + threadIdx.x] = *slot(round);
    const unsigned next = round + kGroups - 1;
    if (next < rounds) cp_async_16(slot(next), &from[next * kCopyThreads + threadIdx.x]);
    cp_async_commit();  // empty at the end: the count of groups goes on
  }
}

TEST_F(Wrappers, WaitingForAllButNGroupsIsEnoughForTheOldest) {
  const unsigned rounds = 50;
  const std::vector<unsigned> values = numbers(4 * kCopyThreads * rounds, 3);
  const DeviceMemory from = upload(values), to(from.size_bytes(), "a test");
  run(pipeline, 1, kCopyThreads, 0, from.as<uint4>(), rounds, to.as<uint4>());
  EXPECT_EQ(download<unsigned>(to), values);
}

// ------------------------------------------------------------------------------------------------------------ tensor cores

constexpr unsigned kMatrixStride = 24;  // 16-bit values from row to row: 48 bytes

template <bool kTransposed>
__global__ void load_four_matrices(const std::uint16_t* from, unsigned* to) {
  LOCKSTEP_SHARED(uint4[kWarp * kMatrixStride / 8], stage);
  auto* values = reinterpret_cast<std::uint16_t*>(stage);
  for (unsigned i = threadIdx.x; i < kWarp * kMatrixStride; i += kWarp) values[i] = from[i];
  __syncthreads();
  unsigned r[4];
  const unsigned row = threadIdx.x * 5 % kWarp;  // rows lie anywhere
  if constexpr (kTransposed) {
    ldmatrix_x4_trans(r, values + row * kMatrixStride + 8);
  } else {
    ldmatrix_x4(r, values + row * kMatrixStride + 8);
  }
  for (unsigned matrix = 0; matrix < 4; ++matrix) to[matrix * kWarp + threadIdx.x] = r[matrix];
}

TEST_F(Wrappers, MatricesAreLoadedAsFragments) {
  std::vector<std::uint16_t> values(kWarp * kMatrixStride);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 3 + 1);
  const DeviceMemory from = upload(values), plain(4 * kWarp * sizeof(unsigned), "a test"), transposed(plain.size_bytes(), "a test");
  run(load_four_matrices<false>, 1, kWarp, 0, from.as<std::uint16_t>(), plain.as<unsigned>());
  run(load_four_matrices<true>, 1, kWarp, 0, from.as<std::uint16_t>(), transposed.as<unsigned>());
  const std::vector<unsigned> rows = download<unsigned>(plain), columns = download<unsigned>(transposed);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const auto at = [&](unsigned row, unsigned column) -> unsigned {
      return values[(matrix * 8 + row) * 5 % kWarp * kMatrixStride + 8 + column];
    };
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const unsigned outer = lane / 4, inner = 2 * (lane % 4);
      EXPECT_EQ(rows[matrix * kWarp + lane], at(outer, inner) | at(outer, inner + 1) << 16) << matrix << " " << lane;
      EXPECT_EQ(columns[matrix * kWarp + lane], at(inner, outer) | at(inner + 1, outer) << 16) << matrix << " " << lane;
    }
  }
}

constexpr unsigned kM = 16, kN = 8, kK = 16;

/// d [16, 8] += a [16, 16] b [16, 8], all row-major; fragments as portable.h says.
template <bool kBFloat16>
__global__ void multiply(const std::uint16_t* a, const std::uint16_t* b, float* d) {
  const unsigned g = threadIdx.x / 4, t = 2 * (threadIdx.x % 4);
  const auto pair = [](const std::uint16_t* low, const std::uint16_t* high) { return unsigned{*low} | unsigned{*high} << 16; };
  const auto of_a = [&](unsigned row, unsigned column) { return pair(a + row * kK + column, a + row * kK + column + 1); };
  const auto of_b = [&](unsigned row) { return pair(b + row * kN + g, b + (row + 1) * kN + g); };
  const unsigned fragment[4] = {of_a(g, t), of_a(g + 8, t), of_a(g, t + 8), of_a(g + 8, t + 8)};
  float sums[4] = {d[g * kN + t], d[g * kN + t + 1], d[(g + 8) * kN + t], d[(g + 8) * kN + t + 1]};
  if constexpr (kBFloat16) {
    mma_bf16_16816(sums, fragment, of_b(t), of_b(t + 8));
  } else {
    mma_f16_16816(sums, fragment, of_b(t), of_b(t + 8));
  }
  d[g * kN + t] = sums[0];
  d[g * kN + t + 1] = sums[1];
  d[(g + 8) * kN + t] = sums[2];
  d[(g + 8) * kN + t + 1] = sums[3];
}

/// A product of 16-bit matrices, and the same in double precision.
struct Product {
  std::vector<std::uint16_t> a, b;
  std::vector<float> d;

  template <class Value>
  Product(bool bfloat16, const Value& value) : is_bfloat16(bfloat16) {
    for (unsigned i = 0; i < kM * kK; ++i) a.push_back(narrow(value()));
    for (unsigned i = 0; i < kK * kN; ++i) b.push_back(narrow(value()));
    for (unsigned i = 0; i < kM * kN; ++i) d.push_back(value());
  }
  bool is_bfloat16;

  std::uint16_t narrow(float x) const { return is_bfloat16 ? float_to_bfloat16(x) : float_to_half(x); }
  double wide(std::uint16_t x) const { return double{is_bfloat16 ? bfloat16_to_float(x) : half_to_float(x)}; }
  /// The exact sum, and the sum of the magnitudes of what is added.
  std::pair<double, double> expected(unsigned row, unsigned column) const {
    double sum = double{d[row * kN + column]}, magnitude = std::fabs(sum);
    for (unsigned k = 0; k < kK; ++k) {
      const double term = wide(a[row * kK + k]) * wide(b[k * kN + column]);
      sum += term;
      magnitude += std::fabs(term);
    }
    return {sum, magnitude};
  }
};

class TensorCores : public Wrappers {
 protected:
  std::vector<float> compute(const Product& product) {
    const DeviceMemory a = upload(product.a), b = upload(product.b), d = upload(product.d);
    if (product.is_bfloat16) {
      run(multiply<true>, 1, kWarp, 0, a.as<std::uint16_t>(), b.as<std::uint16_t>(), d.as<float>());
    } else {
      run(multiply<false>, 1, kWarp, 0, a.as<std::uint16_t>(), b.as<std::uint16_t>(), d.as<float>());
    }
    return download<float>(d);
  }
};

TEST_F(TensorCores, MultiplyWholeNumbersExactly) {
  std::mt19937 generator(4);
  for (const bool bfloat16 : {true, false}) {
    const Product product(bfloat16, [&] { return static_cast<float>(static_cast<int>(generator() % 129) - 64); });
    const std::vector<float> found = compute(product);
    for (unsigned i = 0; i < kM * kN; ++i) EXPECT_EQ(double{found[i]}, product.expected(i / kN, i % kN).first) << bfloat16 << " " << i;
  }
}

/// Inside, sums are kept with at least the bits of fp32, in an order that is the GPU's: 17 terms, each cut off at the magnitude of the
/// largest.
TEST_F(TensorCores, AddInFloat32) {
  std::mt19937 generator(5);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (const bool bfloat16 : {true, false}) {
    for (int round = 0; round < 20; ++round) {
      const Product product(bfloat16, [&] { return std::ldexp(uniform(generator), static_cast<int>(generator() % 9) - 4); });
      const std::vector<float> found = compute(product);
      for (unsigned i = 0; i < kM * kN; ++i) {
        const auto [sum, magnitude] = product.expected(i / kN, i % kN);
        ASSERT_LE(std::fabs(double{found[i]} - sum), (kK + 1) * 0x1p-23 * magnitude) << bfloat16 << " " << i;
      }
      ASSERT_EQ(compute(product), found) << "the same product twice";
    }
  }
}

/// fp16 weights may be subnormal; what is no number must stay one that shows.
TEST_F(TensorCores, KeepSubnormalsInfinitiesAndNotANumber) {
  Product product(false, [] { return 0.0f; });
  for (unsigned row = 0; row < kM; ++row) product.a[row * kK] = static_cast<std::uint16_t>(row + 1);  // (row + 1) 2^-24
  product.b[0] = float_to_half(1.0f);
  const std::vector<float> small = compute(product);
  for (unsigned row = 0; row < kM; ++row) EXPECT_EQ(small[row * kN], std::ldexp(static_cast<float>(row + 1), -24)) << row;
  for (const bool bfloat16 : {true, false}) {
    Product infinite(bfloat16, [] { return 1.0f; });
    infinite.a[0] = infinite.narrow(INFINITY);
    infinite.a[kK] = infinite.narrow(std::nanf(""));
    const std::vector<float> found = compute(infinite);
    EXPECT_EQ(found[0], INFINITY);
    EXPECT_TRUE(std::isnan(found[kN]));
    EXPECT_EQ(found[2 * kN], 17.0f);
  }
}

// ------------------------------------------------------------------------------------------------------------ global memory

__global__ void copy_16(const uint4* from, uint4* plain, uint4* streamed, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  store_16(&plain[count - 1 - i], load_16(&from[i]));
  store_16(&streamed[i], load_16_streaming(&from[i]));
}

TEST_F(Wrappers, SixteenBytesAreLoadedAndStoredAtOnce) {
  const unsigned count = 1000;
  const std::vector<unsigned> values = numbers(4 * count, 6);
  const DeviceMemory from = upload(values), plain(from.size_bytes(), "a test"), streamed(from.size_bytes(), "a test");
  run(copy_16, 4, 256, 0, from.as<uint4>(), plain.as<uint4>(), streamed.as<uint4>(), count);
  EXPECT_EQ(download<unsigned>(streamed), values);
  const std::vector<unsigned> turned = download<unsigned>(plain);
  for (unsigned i = 0; i < 4 * count; ++i) EXPECT_EQ(turned[i], values[(count - 1 - i / 4) * 4 + i % 4]) << i;
}

constexpr unsigned kPayload = 256;

/// Two blocks take turns: one writes the payload of a round, the other reads it. The flags are the only thing that orders them.
__global__ void ping_pong(unsigned* payload, unsigned* flags, unsigned rounds, unsigned* wrong) {
  const bool writes = blockIdx.x == 0;
  for (unsigned round = 1; round <= rounds; ++round) {
    if (threadIdx.x == 0) {
      while (load_acquire_system(&flags[writes ? 32 : 0]) != (writes ? round - 1 : round)) {
      }
    }
    __syncthreads();
    if (writes) {
      payload[threadIdx.x] = round * 1000 + threadIdx.x;
    } else if (payload[threadIdx.x] != round * 1000 + threadIdx.x) {
      atomicAdd(wrong, 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) store_release_system(&flags[writes ? 0 : 32], round);
  }
}

TEST_F(Wrappers, WhatWasWrittenBeforeAReleaseIsSeenBehindTheAcquire) {
  const DeviceMemory payload = upload(std::vector<unsigned>(kPayload, 0)), flags = upload(std::vector<unsigned>(64, 0)),
                     wrong = upload(std::vector<unsigned>(1, 0));
  run(ping_pong, 2, kPayload, 0, payload.as<unsigned>(), flags.as<unsigned>(), 200u, wrong.as<unsigned>());
  EXPECT_EQ(download<unsigned>(wrong)[0], 0u);
  EXPECT_EQ(download<unsigned>(flags)[0], 200u);
}

/// The block that comes last adds up what all have written, as a split product does.
__global__ void last_block_adds(unsigned* parts, unsigned* counter, unsigned* tickets, unsigned* sum) {
  LOCKSTEP_SHARED(unsigned, ticket);
  parts[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) {
    ticket = atomic_add_acq_rel(counter, 1);
    tickets[blockIdx.x] = ticket;
  }
  __syncthreads();
  if (ticket != gridDim.x - 1) return;
  unsigned total = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) total += parts[block * blockDim.x + threadIdx.x];
  sum[threadIdx.x] = total;
}

TEST_F(Wrappers, TheLastBlockSeesWhatAllBlocksWroteBeforeTheirAtomicAddition) {
  const unsigned blocks = 48, threads = 64;
  for (int round = 0; round < 10; ++round) {
    const DeviceMemory parts = upload(std::vector<unsigned>(blocks * threads, 0)), counter = upload(std::vector<unsigned>(1, 0)),
                       tickets(blocks * sizeof(unsigned), "a test"), sum(threads * sizeof(unsigned), "a test");
    run(last_block_adds, blocks, threads, 0, parts.as<unsigned>(), counter.as<unsigned>(), tickets.as<unsigned>(), sum.as<unsigned>());
    const std::vector<unsigned> order = download<unsigned>(tickets), sums = download<unsigned>(sum);
    EXPECT_EQ(std::set<unsigned>(order.begin(), order.end()).size(), blocks);
    EXPECT_EQ(*std::max_element(order.begin(), order.end()), blocks - 1);
    for (unsigned thread = 0; thread < threads; ++thread) EXPECT_EQ(sums[thread], blocks * (blocks - 1) / 2 * 100 + blocks * thread);
  }
}

// ------------------------------------------------------------------------------------------------------------ launches

__global__ void reverse_through_shared(unsigned* values, unsigned count, unsigned* misaligned) {
  LOCKSTEP_DYNAMIC_SHARED(unsigned, stage);
  if (reinterpret_cast<std::uintptr_t>(stage) % 128 != 0) atomicAdd(misaligned, 1u);
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) stage[i] = values[i];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) values[i] = stage[count - 1 - i];
}

TEST_F(Wrappers, AKernelMayHaveMoreSharedMemoryThanIsGivenUnasked) {
  for (const unsigned bytes : {1024u, 48u << 10, 96u << 10}) {
    std::vector<unsigned> values = numbers(bytes / sizeof(unsigned), bytes);
    const DeviceMemory memory = upload(values), misaligned = upload(std::vector<unsigned>(1, 0));
    run(reverse_through_shared, 1, 256, bytes, memory.as<unsigned>(), bytes / static_cast<unsigned>(sizeof(unsigned)),
        misaligned.as<unsigned>());
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(download<unsigned>(memory), values) << bytes;
    EXPECT_EQ(download<unsigned>(misaligned)[0], 0u);
  }
}

/// The numeric contract needs them rounded to nearest, whatever the compiler's flags are (docs/numerics.md, N9).
__global__ void divide_and_root(const float* x, const float* y, float* out) {
  const unsigned i = threadIdx.x;
  out[4 * i] = x[i] / y[i];
  out[4 * i + 1] = sqrtf(y[i]);
  out[4 * i + 2] = fmaf(x[i], y[i], -1.0f);
  out[4 * i + 3] = x[i] * y[i] - 1.0f;  // two roundings
}

TEST_F(Wrappers, DivisionsRootsAndProductsRoundAsOnTheHost) {
  std::mt19937 generator(8);
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  std::vector<float> x, y;
  for (int i = 0; i < 256; ++i) {
    x.push_back(uniform(generator) * (i % 5 == 0 ? 1e-38f : 1.0f));  // quotients below the normal numbers, too
    y.push_back(i % 7 == 0 ? 1.0f / x.back() : uniform(generator) * 1.5f);
  }
  const DeviceMemory a = upload(x), b = upload(y), out(4 * x.size() * sizeof(float), "a test");
  run(divide_and_root, 1, 256, 0, a.as<float>(), b.as<float>(), out.as<float>());
  const std::vector<float> found = download<float>(out);
  for (std::size_t i = 0; i < x.size(); ++i) {
    volatile float product = x[i] * y[i];  // else a compiler may fuse it
    const float expected[] = {x[i] / y[i], std::sqrt(y[i]), std::fma(x[i], y[i], -1.0f), product - 1.0f};
    EXPECT_EQ(std::memcmp(&found[4 * i], expected, sizeof expected), 0) << i;
  }
}

}  // namespace
