#include "device/cpu/kv_cache.h"

#include <gtest/gtest.h>

#include "tests/device/eight_bits.h"

namespace lockstep::device {
namespace {

using namespace reference;

constexpr KvQuantisation kTypes[] = {KvQuantisation::kInt8, KvQuantisation::kFloat8};

/// One head and a sequence whose keys are `vectors`, and its values those in reverse order.
struct Kept {
  std::unique_ptr<Device> device;
  std::unique_ptr<KvCache> cache;
  OwnedMatrix qkv;
  StepBatch batch;
  AttentionSpec spec;

  Kept(const CpuOptions& options, KvQuantisation quantised, const std::vector<std::vector<float>>& vectors) {
    const std::size_t dim = vectors[0].size(), count = vectors.size(), blocks = (count + 31) / 32;
    device = make_cpu_device(options);
    cache = device->allocate_kv_cache({2, blocks, 32, 1, dim, DType::kF32, quantised});
    spec = {.num_heads = 1, .num_kv_heads = 1, .head_dim = dim, .kv_head_of = {0}, .scale = 1.0f, .window = 1};
    std::vector<float> rows;
    for (std::size_t t = 0; t < count; ++t) {
      rows.insert(rows.end(), dim, 0.0f);
      rows.insert(rows.end(), vectors[t].begin(), vectors[t].end());
      rows.insert(rows.end(), vectors[count - 1 - t].begin(), vectors[count - 1 - t].end());
      batch.token_ids.push_back(0);
      batch.positions.push_back(static_cast<std::int32_t>(t));
    }
    batch.sequences = {{.num_tokens = static_cast<std::uint32_t>(count)}};
    for (std::size_t block = 0; block < blocks; ++block) batch.block_tables.push_back(static_cast<std::uint32_t>(blocks - 1 - block));
    qkv = upload(*device, rows, 3 * dim);
    device->begin_step(batch);
    device->rotate_and_append(qkv.matrix, spec, nullptr, *cache, 1);
  }
  EightBitVector vector(std::size_t token, bool is_value) const {
    return vector_in_cache(static_cast<cpu::CpuKvCache&>(*cache).layer(1), batch.block_tables[token / 32], 0, token % 32, is_value);
  }
};

TEST(KvCacheOf8Bits, HoldsTheNumbersOfTheDefinitionOnEveryInstructionSet) {
  for (const KvQuantisation quantised : kTypes) {
    for (const std::size_t dim : {1, 8, 20, 64, 129}) {
      const auto vectors = hard_vectors(dim);
      for (const CpuOptions& options : all_options()) {
        const Kept kept(options, quantised, vectors);
        for (std::size_t t = 0; t < vectors.size(); ++t) {
          for (const bool is_value : {false, true}) {
            const EightBitVector found = kept.vector(t, is_value);
            const EightBitVector expected = in_eight_bits(quantised, vectors[is_value ? vectors.size() - 1 - t : t]);
            EXPECT_EQ(found.codes, expected.codes) << kept.device->description() << " " << name_of(quantised) << " vector " << t;
            EXPECT_TRUE(same(found.scale, expected.scale)) << kept.device->description() << " " << name_of(quantised) << " vector " << t;
          }
        }
      }
    }
  }
}

/// A query that sees one key gives that key's value, as it is read.
TEST(KvCacheOf8Bits, AValueIsReadAsScaleTimesNumber) {
  for (const KvQuantisation quantised : kTypes) {
    auto vectors = hard_vectors(40);
    std::erase_if(vectors,
                  [](const std::vector<float>& vector) { return !std::isfinite(vector.back()); });  // as a key, it spoils the score
    for (const CpuOptions& options : all_options()) {
      const Kept kept(options, quantised, vectors);
      const OwnedMatrix out = make_matrix(*kept.device, Activation::kFloat32, vectors.size(), 40);
      kept.device->attention(kept.qkv.matrix, kept.spec, *kept.cache, 1, out.matrix);
      const std::vector<float> found = download(*kept.device, out.matrix, vectors.size());
      for (std::size_t t = 0; t < vectors.size(); ++t) {
        const EightBitVector stored = kept.vector(t, true);
        for (std::size_t d = 0; d < 40; ++d) {
          const float expected = read_element(quantised, stored, d) + 0.0f;  // as a sum from +0: no -0
          EXPECT_TRUE(same(found[t * 40 + d], expected)) << kept.device->description() << " " << found[t * 40 + d] << " " << expected;
        }
      }
    }
  }
}

/// docs/numerics.md, N7: the bounds that are published there. For vectors whose largest number is within 2^-117 and 2^127.
TEST(KvCacheOf8Bits, AnElementIsReadWithinThePublishedBoundOfWhatWasStored) {
  double largest_share[2] = {0, 0};
  for (const KvQuantisation quantised : kTypes) {
    std::vector<std::vector<float>> vectors = hard_vectors(128);
    for (std::uint32_t seed = 0; seed < 500; ++seed) {
      vectors.push_back(random_floats(128, seed, std::ldexp(1.0f, static_cast<int>(seed % 200) - 100)));
      for (std::size_t i = 0; i < 128; i += 2) vectors.back()[i] *= std::ldexp(1.0f, -static_cast<int>(i % 20));
    }
    const Kept kept({1, supported_isas().back()}, quantised, vectors);
    for (std::size_t t = 0; t < vectors.size(); ++t) {
      float largest = 0;
      for (const float x : vectors[t]) largest = std::max(largest, std::isfinite(x) ? std::fabs(x) : HUGE_VALF);
      if (largest < 0x1p-117f || std::isinf(largest)) continue;
      const EightBitVector stored = kept.vector(t, false);
      for (std::size_t i = 0; i < 128; ++i) {
        const double x = vectors[t][i], error = std::fabs(x - static_cast<double>(read_element(quantised, stored, i)));
        const double scale = stored.scale;
        const double bound = quantised == KvQuantisation::kInt8 ? scale * (0.5 + 0x1p-15)
                                                                : std::max(std::fabs(x) * (0x1p-4 + 0x1p-21), scale * (0x1p-10 + 0x1p-21));
        ASSERT_LE(error, bound) << name_of(quantised) << " " << x << " scale " << scale;
        double& share = largest_share[quantised == KvQuantisation::kInt8 ? 0 : 1];
        share = std::max(share, error / bound);
      }
    }
  }
  for (const double share : largest_share) EXPECT_GT(share, 0.99);  // the bounds are as tight as they can be stated
}

TEST(KvCacheSpecification, CountsTheScalesOf8Bits) {
  const KvCacheSpec spec{3, 10, 32, 2, 64, DType::kF16, KvQuantisation::kNone};
  KvCacheSpec eight = spec;
  eight.quantised = KvQuantisation::kInt8;
  EXPECT_EQ(spec.bytes_per_block(), 2u * 3 * 2 * 32 * 64 * 2);
  EXPECT_EQ(eight.bytes_per_block(), 2u * 3 * 2 * 32 * (64 + 4));
}

TEST(KvCache, RefusesABlockSizeThatIsNoMultipleOf16AndTypesThatItLacks) {
  EXPECT_THROW(make_cpu_device({1})->allocate_kv_cache({1, 1, 24, 1, 16, DType::kF32}), std::invalid_argument);
  EXPECT_THROW(make_cpu_device({1})->allocate_kv_cache({1, 1, 16, 1, 32, DType::kQ8_0}), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device
