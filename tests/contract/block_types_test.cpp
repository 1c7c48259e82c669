// Block-quantised weights in whole models: super-blocks that shards cut inside, and float activations.
#include <gtest/gtest.h>

#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

using device::DType;

/// 8 heads of 32 and 768 inner columns: 8 ranks cut both row-parallel products at every 32 or 96 columns, inside super-blocks of 256.
constexpr test::TinyModel kModel{.hidden = 256, .num_heads = 8, .num_kv_heads = 4, .feed_forward = 768};

class BlockTypes : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { test::write_tiny_gguf(path_, GetParam(), kModel); }

  test::RunSetup setup(int ranks, device::Isa isa, std::size_t threads) const {
    test::RunSetup setup;
    setup.session.model = path_;
    setup.session.kv_dtype = DType::kF32;
    setup.session.kv_cache_bytes = 16u << 20;
    setup.ranks = ranks;
    setup.isa = isa;
    setup.threads = threads;
    return setup;
  }

  static std::vector<std::vector<float>> logits(const test::RunSetup& setup) {
    std::vector<std::vector<float>> rows;
    test::with_session(setup, [&](engine::Session& session) {
      rows = test::prompt_logits(session, {5, 17, 200, 33, 90, 41, 7, 101, 64});
      for (const std::int32_t id : test::greedy(session, {9, 8, 7}, 8)) rows.push_back({static_cast<float>(id)});
    });
    return rows;
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "model.gguf";
};

TEST_P(BlockTypes, GiveTheSameBytesOnEveryNumberOfRanksAndInstructionSet) {
  const auto expected = logits(setup(1, device::Isa::kPortable, 1));
  ASSERT_EQ(expected.size(), 9u + 8u);
  for (const float value : expected[0]) ASSERT_TRUE(std::isfinite(value));
  for (const device::Isa isa : device::supported_isas()) {
    for (const int ranks : {1, 2, 3, 5, 8}) EXPECT_EQ(logits(setup(ranks, isa, 2)), expected) << ranks << " ranks, " << isa_name(isa);
  }
}

TEST_P(BlockTypes, WithFloatActivationsGiveTheBytesOfExpandedWeights) {
  test::RunSetup exact = setup(1, device::Isa::kPortable, 1);
  exact.session.dtype = DType::kF32;
  const auto expected = logits(exact);
  EXPECT_NE(logits(setup(1, device::Isa::kPortable, 1)), expected);  // int8 activations round
  for (const int ranks : {1, 3, 8}) {
    test::RunSetup floats = setup(ranks, device::supported_isas().back(), 2);
    floats.session.activation = device::Activation::kFloat32;
    EXPECT_EQ(logits(floats), expected) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlockTypes, testing::Values(DType::kQ8_0, DType::kQ4_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

}  // namespace
}  // namespace lockstep
