// What a decode step costs beside its arithmetic: meetings of the threads, and memory.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "device/cpu/cpu_step_device.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace {

std::atomic<bool> counts{false};
std::atomic<std::size_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counts.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return counted(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

class StepCost : public testing::Test {
 protected:
  /// Decodes `sequences` sequences; calls `each_step` after every step behind the prompts.
  void decode(const test::TinyModel& model, device::DType dtype, int ranks, std::size_t threads, std::size_t sequences,
              const std::function<void(const device::cpu::CpuDevice&)>& each_step) {
    const auto path = folder_.path() / "model.gguf";
    test::write_tiny_gguf(path, dtype, model);
    test::RunSetup setup = test::exact_setup(path, ranks);
    setup.session.dtype.reset();
    setup.session.prefix_caching = false;  // a block that becomes full is entered in a table: an allocation each 32 tokens
    const device::cpu::CpuDevice* first = nullptr;
    setup.open_rank = [&](comm::Communicator& host) {
      comm::CudaRank rank{device::make_cpu_device({.num_threads = threads, .isa = setup.isa}), nullptr};
      if (host.rank() == 0) first = dynamic_cast<const device::cpu::CpuDevice*>(rank.device.get());
      return rank;
    };
    test::with_session(setup, [&](engine::Session& session) {
      ASSERT_NE(first, nullptr);
      engine::Engine& engine = session.engine();
      for (std::size_t i = 0; i < sequences; ++i) {
        engine::Request request;
        request.id = i + 1;
        request.prompt = {5, 6, static_cast<std::int32_t>(7 + i)};
        request.sampling.temperature = 0.0f;
        request.sampling.ignore_eos = true;
        request.sampling.max_tokens = 100;
        engine.submit(std::move(request), [](engine::Completion&&) {});
      }
      for (int warm = 0; warm < 30; ++warm) ASSERT_TRUE(engine.step());
      for (int i = 0; i < 60; ++i) {
        ASSERT_TRUE(engine.step());
        each_step(*first);
      }
      while (engine.step()) {
      }
    });
  }

  std::size_t barriers(test::TinyModel model, std::size_t num_layers, device::DType dtype, std::size_t threads) {
    model.num_layers = num_layers;
    std::size_t most = 0;
    decode(model, dtype, 1, threads, 1, [&](const device::cpu::CpuDevice& device) { most = std::max(most, device.barriers()); });
    return most;
  }

  test::TemporaryFolder folder_;
};

TEST_F(StepCost, ADecodeStepMeetsFourTimesALayer) {
  test::TinyModel even;
  even.num_heads = 8;
  even.num_kv_heads = 4;
  even.hidden = 256;
  even.feed_forward = 256;
  test::TinyModel uneven;  // 9 heads, 3 KV heads
  uneven.feed_forward = 512;
  for (const test::TinyModel& model : {even, uneven}) {
    for (const device::DType dtype : {device::DType::kF32, device::DType::kQ8_0}) {
      for (const std::size_t threads : {2, 4}) {
        EXPECT_EQ(barriers(model, 3, dtype, threads) - barriers(model, 2, dtype, threads), 4u)
            << model.num_kv_heads << " KV heads, " << threads << " threads";
      }
    }
  }
}

TEST_F(StepCost, ADecodeStepAllocatesNothing) {
  for (const auto& [ranks, threads] : {std::pair<int, std::size_t>{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    for (const std::size_t sequences : {1, 3}) {
      std::size_t steps = 0;
      allocations = 0;
      decode({}, device::DType::kQ8_0, ranks, threads, sequences, [&](const device::cpu::CpuDevice&) {
        counts = ++steps < 60;  // from behind the first step to the last
      });
      counts = false;
      EXPECT_EQ(steps, 60u);
      EXPECT_EQ(allocations.load(), 0u) << ranks << " ranks, " << threads << " threads, " << sequences << " sequences";
    }
  }
}

}  // namespace
}  // namespace lockstep
