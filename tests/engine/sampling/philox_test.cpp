#include "engine/sampling/philox.h"

#include <set>

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using Block = std::array<std::uint32_t, 4>;

// The known answers that the authors publish with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsDifferBySeedChoiceAndPosition) {
  std::set<double> draws;
  for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    for (std::uint32_t choice = 0; choice < 5; ++choice) {
      for (std::uint64_t position = 0; position < 50; ++position) draws.insert(sampling_uniform(seed, choice, position));
    }
  }
  EXPECT_EQ(draws.size(), 4u * 5u * 50u);
  EXPECT_GE(*draws.begin(), 0.0);
  EXPECT_LT(*draws.rbegin(), 1.0);
}

TEST(Philox, DrawsAreSpreadEvenly) {
  double sum = 0.0;
  int below_a_tenth = 0;
  constexpr int kDraws = 20000;
  for (int position = 0; position < kDraws; ++position) {
    const double draw = sampling_uniform(7, 0, static_cast<std::uint64_t>(position));
    sum += draw;
    below_a_tenth += draw < 0.1 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
  EXPECT_NEAR(below_a_tenth / double{kDraws}, 0.1, 0.01);
}

}  // namespace
}  // namespace lockstep::engine
