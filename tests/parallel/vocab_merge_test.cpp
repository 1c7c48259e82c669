#include "parallel/vocab_merge.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

device::Top top_of(std::span<const float> row) {
  device::Top top;
  for (std::size_t id = 0; id < row.size(); ++id) {
    top.finite = top.finite && std::isfinite(row[id]);
    if (!std::isnan(row[id]) && (top.id < 0 || row[id] > top.logit)) top = {row[id], static_cast<std::int32_t>(id), top.finite};
  }
  return top;
}

TEST(MergeTops, IsTheTopOfTheWholeRowForEveryCut) {
  std::mt19937 random(5);
  for (const std::size_t vocab_size : {1u, 5u, 97u}) {
    std::vector<float> row(vocab_size);
    for (int round = 0; round < 50; ++round) {
      for (float& logit : row) logit = -1.0f - static_cast<float>(random() % 7);  // ties, and all below what a pad of zero would be
      if (round % 10 == 9) row[random() % vocab_size] = kNan;
      std::vector<std::size_t> shares(1 + random() % 6, 0);
      for (std::size_t id = 0; id < vocab_size; ++id) ++shares[random() % shares.size()];  // some may be empty
      std::vector<device::Top> tops;
      std::size_t first = 0;
      for (const std::size_t share : shares) {
        tops.push_back(top_of(std::span(row).subspan(first, share)));
        first += share;
      }
      device::Top merged;
      merge_tops(tops, shares, {&merged, 1});
      const device::Top expected = top_of(row);
      ASSERT_EQ(merged.id, expected.id);
      ASSERT_EQ(merged.finite, expected.finite);
      if (expected.id >= 0) {
        ASSERT_EQ(merged.logit, expected.logit);
      }
    }
  }
}

TEST(MergeTops, RowsStayApart) {
  const std::vector<device::Top> tops = {{1.0f, 3, true}, {5.0f, 0, false}, {2.0f, 1, true}, {5.0f, 2, true}};
  std::vector<device::Top> merged(2);
  merge_tops(tops, std::vector<std::size_t>{10, 6}, merged);
  EXPECT_EQ(merged[0].id, 11);
  EXPECT_TRUE(merged[0].finite);
  EXPECT_EQ(merged[1].id, 0) << "the lower id of equals";
  EXPECT_FALSE(merged[1].finite);
  EXPECT_THROW(merge_tops(tops, std::vector<std::size_t>{10, 6, 1}, merged), std::invalid_argument);
}

TEST(AssembleRows, PutsUnevenSharesTogether) {
  const std::vector<std::size_t> shares = {32, 0, 48, 17};
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kVocab = 97;
  EXPECT_EQ(gathered_row_bytes(shares, kRows), (std::vector<std::size_t>{384, 0, 576, 204}));
  std::vector<float> gathered;
  std::size_t first = 0;
  for (const std::size_t share : shares) {
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < share; ++i) gathered.push_back(static_cast<float>(1000 * row + first + i));
    }
    first += share;
  }
  std::vector<float> rows(kRows * kVocab);
  assemble_rows(gathered, shares, kRows, rows);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t id = 0; id < kVocab; ++id) ASSERT_EQ(rows[row * kVocab + id], static_cast<float>(1000 * row + id));
  }
  rows.pop_back();
  EXPECT_THROW(assemble_rows(gathered, shares, kRows, rows), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::parallel
