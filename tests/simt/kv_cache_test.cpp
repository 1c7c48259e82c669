// The caches of the CPU device and of a GPU hold the same numbers.
#include <gtest/gtest.h>

#include "device/cuda/cache_view.h"
#include "simt/simt.h"
#include "tests/device/eight_bits.h"
#include "tests/simt/attention_scene.h"

namespace lockstep::device::cuda {
namespace {

TEST(KvCacheOf8BitsOnGpus, HoldsTheBytesOfTheCpuDevice) {
  simt::reset();
  for (const KvQuantisation quantised : {KvQuantisation::kInt8, KvQuantisation::kFloat8}) {
    for (const std::size_t dim : {8, 20, 64}) {
      const std::vector<std::vector<float>> vectors = reference::hard_vectors(dim);
      Scene scene({1, 1, 0, dim, 32, DType::kF32, 0, quantised}, {vectors.size()});
      for (std::size_t t = 0; t < vectors.size(); ++t) {
        std::copy_n(vectors[t].begin(), dim, scene.rows[0].begin() + static_cast<std::ptrdiff_t>((3 * t + 1) * dim));
        std::copy_n(vectors[t].rbegin(), dim, scene.rows[0].begin() + static_cast<std::ptrdiff_t>((3 * t + 2) * dim));
      }
      const KvCacheSpec spec{1, scene.num_blocks(), 32, 1, dim, DType::kF32, quantised};
      std::vector<std::size_t> done{0};
      const CutStep cut = cut_step(scene, {}, done);

      const auto cpu = make_cpu_device({1, supported_isas().back()});
      const auto cpu_cache = cpu->allocate_kv_cache(spec);
      const reference::OwnedMatrix in = reference::upload(*cpu, cut.qkv, 3 * dim);
      cpu->begin_step(cut.batch);
      cpu->rotate_and_append(in.matrix, {.num_heads = 1, .num_kv_heads = 1, .head_dim = dim, .kv_head_of = {0}, .scale = 1.0f}, nullptr,
                             *cpu_cache, 0);
      const cpu::CacheView expected = static_cast<cpu::CpuKvCache&>(*cpu_cache).layer(0);

      const TestStream stream(1);
      const CudaKvCache cache(spec);
      const DeviceStep step(scene, {}, cut.batch);
      const DeviceRows qkv = upload_rows(cut.qkv, 3 * dim);
      rotate_and_append(stream.launch(), qkv.rows, step.view, scene.heads(), {}, cache, 0);
      stream.synchronize();
      const CacheView view = view_of(cache, 0);

      for (std::size_t t = 0; t < vectors.size(); ++t) {
        const std::uint32_t block = cut.batch.block_tables[t / 32];
        for (const bool is_value : {false, true}) {
          const std::byte* half = view.keys(block, 0) + (is_value ? view.value_offset() : 0);
          const auto codes = from_device<std::uint8_t>(half + t % 32 * view.vector_bytes, dim);
          const float scale = from_device<float>(view.scales(half) + t % 32, 1)[0];
          const reference::EightBitVector stored = reference::vector_in_cache(expected, block, 0, t % 32, is_value);
          EXPECT_EQ(codes, stored.codes) << name_of(quantised) << " head_dim " << dim << " vector " << t;
          EXPECT_EQ(reference::bits(scale), reference::bits(stored.scale)) << name_of(quantised) << " vector " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::device::cuda
