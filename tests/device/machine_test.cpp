#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "device/cpu/cpu_device.h"
#include "device/cpu/memory.h"
#include "device/cpu/probe.h"
#include "device/cpu/processors.h"
#include "device/cpu/thread_pool.h"

namespace lockstep::device {
namespace {

using testing::HasSubstr;

TEST(Isa, EveryLevelOfTheMachineIsFoundByItsName) {
  ASSERT_FALSE(supported_isas().empty());
  EXPECT_EQ(supported_isas().front(), Isa::kPortable);
  for (const Isa isa : supported_isas()) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
}

TEST(Isa, ANameThatIsUnknownOrMissingIsAnErrorThatNamesIt) {
  try {
    isa_from_name("avx1024");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("avx1024"));
    EXPECT_THAT(error.what(), HasSubstr("portable"));
  }
  const auto supported = supported_isas();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni}) {
    if (std::find(supported.begin(), supported.end(), isa) != supported.end()) continue;
    EXPECT_THROW(isa_from_name(isa_name(isa)), std::runtime_error);
    EXPECT_THROW(make_cpu_device({1, isa}), std::runtime_error);
  }
}

TEST(Processors, FollowTheAffinityMaskAndTheQuota) {
  std::thread([] {  // a thread of its own: its mask ends with it
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const std::size_t usable = usable_processors();
    EXPECT_GE(usable, 1u);
    EXPECT_LE(usable, static_cast<std::size_t>(CPU_COUNT(&all)));
    EXPECT_EQ(usable, std::min(static_cast<std::size_t>(CPU_COUNT(&all)), quota_processors()));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_processors(), 1u);
  })
      .join();
}

TEST(ThreadPool, RunsEveryThreadOnceARunAndPassesOnAFailure) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    cpu::ThreadPool pool(threads);
    std::vector<int> counts(threads, 0);
    for (int run = 0; run < 2000; ++run) pool.run([&](std::size_t thread) { ++counts[thread]; });
    EXPECT_EQ(counts, std::vector<int>(threads, 2000));
    EXPECT_THROW(pool.run([&](std::size_t thread) {
      if (thread == threads - 1) throw std::runtime_error("no");
    }),
                 std::runtime_error);
    pool.run([&](std::size_t thread) { ++counts[thread]; });
    EXPECT_EQ(counts, std::vector<int>(threads, 2001));
  }
}

#if defined(__x86_64__)
TEST(FloatMode, TheCallersModeChangesNoBitAndComesBack) {
  const std::uint32_t before = _mm_getcsr();
  const auto device = make_cpu_device({1});
  std::vector<float> x(16, 1e-40f), out(16);  // subnormal
  const Matrix to{x.data(), 16, 1, Activation::kFloat32};
  std::vector<float> zeros(16, 0.0f);
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  device->add(to, {zeros.data(), 16, 1, Activation::kFloat32}, 1, nullptr);
  EXPECT_EQ(_mm_getcsr() & 0x8040u, 0x8040u);
  _mm_setcsr(before);
  EXPECT_EQ(x, std::vector<float>(16, 1e-40f));
}
#endif

TEST(Arena, SmallPiecesShareAChunkAndLargeOnesHaveTheirOwn) {
  cpu::Arena arena;
  const auto first = arena.take(1000), second = arena.take(1000), large = arena.take(std::size_t{80} << 20), third = arena.take(1000);
  EXPECT_EQ(first.chunk, second.chunk);
  EXPECT_EQ(first.chunk, third.chunk);
  EXPECT_NE(first.chunk, large.chunk);
  EXPECT_EQ(second.data - first.data, 1024);  // they are one stream of memory
  large.data[(std::size_t{80} << 20) + 63] = std::byte{1};
}

TEST(Probe, MeasuresSomething) { EXPECT_GT(measure_read_bandwidth(2, std::size_t{8} << 20, 0.01), 1e6); }

TEST(CpuDevice, SaysWhatItIs) {
  EXPECT_EQ(make_cpu_device({1, Isa::kPortable})->description(), "cpu portable, 1 thread");
  EXPECT_EQ(make_cpu_device({2, Isa::kPortable})->description(), "cpu portable, 2 threads");
  EXPECT_THROW(make_cpu_device({0}), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device
