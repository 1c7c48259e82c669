// Ops that are two in one, against the two.
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "device/cpu/row_sketch.h"
#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

TEST(SumAddNorm, GivesTheBitsOfTheSumAndTheNorm) {
  constexpr std::size_t kRows = 5, kColumns = 96;
  const std::vector<float> x = random_floats(kRows * kColumns, 1), bias = random_floats(kColumns, 2), weight = random_floats(kColumns, 3);
  std::vector<std::vector<float>> parts;
  for (std::uint32_t part = 0; part < 5; ++part) parts.push_back(random_floats(kRows * kColumns, 10 + part));
  const std::vector<std::vector<SumOfParts::Merge>> trees = {{}, {{1, 0}, {0, 1}}, {{0, 1}, {2, 3}, {0, 2}, {0, 4}}};
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const std::vector<SumOfParts::Merge>& merges : trees) {
      std::vector<std::vector<float>> sums = parts;
      for (const SumOfParts::Merge merge : merges) {
        for (std::size_t i = 0; i < sums[0].size(); ++i) sums[merge.into][i] += sums[merge.from][i];
      }
      std::vector<const float*> places;
      for (const std::vector<float>& part : parts) places.push_back(part.data());
      for (const Activation type : {Activation::kFloat32, Activation::kInt8Blocks}) {
        for (const std::size_t rows : {std::size_t{1}, kRows}) {
          const OwnedMatrix delta = upload(*device, sums[0], kColumns), one = upload(*device, x, kColumns),
                            two = upload(*device, x, kColumns);
          const OwnedMatrix fused = make_matrix(*device, type, rows, kColumns), separate = make_matrix(*device, type, rows, kColumns);
          const Norm norm = Norm::rms(weight.data(), 1e-5f);
          device->run_step([&] {
            device->sum_add_norm(one.matrix, {places, merges}, rows, bias.data(), norm, fused.matrix);
            device->add_norm(two.matrix, delta.matrix, rows, bias.data(), norm, separate.matrix);
          });
          EXPECT_EQ(count_different(download(*device, one.matrix, kRows), download(*device, two.matrix, kRows)), 0u);
          EXPECT_EQ(count_different(download(*device, fused.matrix, rows), download(*device, separate.matrix, rows)), 0u);
        }
      }
    }
  }
}

TEST(LinearTop, GivesTheProductsAndTheTopsOfTheTwoOps) {
  for (const std::size_t ids : {std::size_t{1}, std::size_t{97}, std::size_t{3000}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
      StoredWeight stored = make_weight(dtype, ids, 64, make_leaves(dtype, 64, 1), 7);
      for (const CpuOptions& options : all_options()) {
        const auto device = make_cpu_device(options);
        const auto weight = device->load_weight(stored.spec, stored.reader());
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, std::size_t{90}}) {  // several steps a thread
          const OwnedMatrix in = upload(*device, random_floats(rows * 64, 8), 64, device->activation_for(dtype));
          const OwnedMatrix fused = make_matrix(*device, Activation::kFloat32, rows, ids),
                            separate = make_matrix(*device, Activation::kFloat32, rows, ids);
          std::vector<Top> tops(rows), expected(rows);
          device->run_step([&] { device->linear_top(in.matrix, rows, *weight, nullptr, fused.matrix, {}); });
          device->read_tops(tops);
          device->run_step([&] {
            device->linear(in.matrix, rows, *weight, nullptr, separate.matrix, 0);
            device->top_of_rows(separate.matrix, rows);
          });
          device->read_tops(expected);
          EXPECT_EQ(count_different(download(*device, fused.matrix, rows), download(*device, separate.matrix, rows)), 0u);
          for (std::size_t row = 0; row < rows; ++row) {
            EXPECT_EQ(tops[row].id, expected[row].id) << ids << " ids, row " << row;
            EXPECT_EQ(tops[row].logit, expected[row].logit);
            EXPECT_EQ(tops[row].finite, expected[row].finite);
          }
        }
      }
    }
  }
}

/// A selection whose rows the last product was told of, against one whose rows it was not: what depends on sketches may differ in the mass
/// alone, and that within its error.
TEST(LinearTop, BeginsWithTheSelectionThatFollows) {
  constexpr std::size_t kRows = 7;
  for (const std::size_t ids : {std::size_t{1}, std::size_t{97}, std::size_t{5000}, std::size_t{9001}}) {
    StoredWeight stored = make_weight(DType::kQ8_0, ids, 64, make_leaves(DType::kQ8_0, 64, 1), 7);
    std::vector<float> input = random_floats(kRows * 64, 8, 60.0f);
    std::fill_n(input.begin() + 64, 64, 0.0f);  // a row of ties
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      device->prepare_selection(kRows, segment_runs(0, (ids + kVocabularySegment - 1) / kVocabularySegment));
      const auto weight = device->load_weight(stored.spec, stored.reader());
      const OwnedMatrix in = upload(*device, input, 64, device->activation_for(DType::kQ8_0));
      const OwnedMatrix logits = make_matrix(*device, Activation::kFloat32, kRows, ids);
      const std::vector<LogitChange> changes = {{.id = 0, .bias = 3.0f}};
      const std::vector<SelectionRow> rows = {{.scale = 1.25, .row = 0, .num_candidates = 64},
                                              {.scale = 0.5, .row = 1, .num_candidates = 8},
                                              {.row = 2, .num_candidates = 40, .num_best = 3},
                                              {.scale = 1.0, .row = 3, .num_candidates = 64, .log_sum = LogSum::kIsMass},
                                              {.scale = 100.0, .row = 5, .num_changes = 1, .num_candidates = 300, .log_sum = LogSum::kOwn},
                                              {.scale = 2.0, .row = 6, .num_candidates = 1, .log_sum = LogSum::kOwn}};
      SelectionLayout layout;
      layout.reset(rows, ids, segment_runs(0, (ids + kVocabularySegment - 1) / kVocabularySegment).size());
      const auto select = [&](std::span<const SelectionRow> expected, std::vector<Top>& tops) {
        std::vector<float> peaks(kPeakSize * kRows);
        device->run_step([&] { device->linear_top(in.matrix, kRows, *weight, nullptr, logits.matrix, expected); });
        device->read_tops(tops);
        device->begin_selection(logits.matrix, {rows, changes}, 0, 1, peaks.data());
        device->finish_selection(logits.matrix, {rows, changes}, 1, peaks.data());
        const auto found = device->read_selection();
        return std::vector<std::byte>(found.begin(), found.end());
      };
      std::vector<Top> tops(kRows), expected_tops(kRows);
      const std::vector<std::byte> found = select(rows, tops), expected = select({}, expected_tops);
      ASSERT_EQ(found.size(), layout.size_bytes());
      for (std::size_t row = 0; row < kRows; ++row) {
        EXPECT_EQ(tops[row].id, expected_tops[row].id) << ids << " ids, row " << row;
        EXPECT_EQ(tops[row].logit, expected_tops[row].logit);
        EXPECT_EQ(tops[row].finite, expected_tops[row].finite);
      }
      std::vector<double> sums(layout.num_sums()), expected_sums(layout.num_sums());
      std::memcpy(sums.data(), found.data(), layout.candidates_offset());
      std::memcpy(expected_sums.data(), expected.data(), layout.candidates_offset());
      for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], expected_sums[i], 2.0 * kMassError * expected_sums[i]);
      EXPECT_EQ(sums[layout.rows()[3].sums], expected_sums[layout.rows()[3].sums]);
      const auto keys_of = [&](const std::vector<std::byte>& bytes, const SelectionLayout::Row& row) {
        std::vector<std::uint64_t> keys;
        for (std::uint32_t i = 0; i < row.num_candidates + row.num_best; ++i) {
          Candidate candidate;
          std::memcpy(&candidate, bytes.data() + layout.candidates_offset() + (row.candidates + i) * sizeof candidate, sizeof candidate);
          keys.push_back(candidate_key(candidate.logit, candidate.id));
        }
        std::sort(keys.begin(), keys.begin() + row.num_candidates);
        std::sort(keys.begin() + row.num_candidates, keys.end());
        return keys;
      };
      for (const SelectionLayout::Row& row : layout.rows()) EXPECT_EQ(keys_of(found, row), keys_of(expected, row)) << ids << " ids";
    }
  }
}

/// One rank knows the mass of the whole row: it gives a first part of the order that covers what was asked for, or all that there may be.
TEST(Selection, GivesNoMoreCandidatesThanCoverEnough) {
  constexpr std::size_t kIds = 3000, kMost = 256;
  std::vector<std::vector<float>> kinds(5, std::vector<float>(kIds, 1.5f));  // the first one is all ties
  kinds[1][1234] = 40.0f;
  kinds[2] = random_floats(kIds, 4, 3.0f);
  for (std::size_t id = 0; id < kIds; ++id) kinds[3][id] = static_cast<float>(id % 40) * -0.5f;
  for (std::size_t id = 0; id < kIds; ++id) kinds[4][id] = -0.02f * static_cast<float>(id);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const std::vector<SegmentRun> runs = segment_runs(0, (kIds + kVocabularySegment - 1) / kVocabularySegment);
    device->prepare_selection(1, runs);
    for (std::vector<float> logits : kinds) {
      const Matrix matrix{logits.data(), kIds, 1, Activation::kFloat32};
      std::vector<std::uint64_t> order;
      for (std::uint32_t id = 0; id < kIds; ++id) order.push_back(candidate_key(logits[id], id));
      std::sort(order.begin(), order.end());
      const float top = logits[static_cast<std::uint32_t>(order[0])];
      for (const double scale : {0.01, 1.25, 1000.0, 1e7}) {
        for (const double covered : {0.1, 0.9, 0.999}) {
          const SelectionRow row{.scale = scale, .covered = covered, .num_candidates = kMost};
          std::vector<float> peaks(kPeakSize);
          device->top_of_rows(matrix, 1);
          device->begin_selection(matrix, {{&row, 1}, {}}, 0, 1, peaks.data());
          device->finish_selection(matrix, {{&row, 1}, {}}, 1, peaks.data());
          const std::span<const std::byte> found = device->read_selection();
          SelectionLayout layout;
          layout.reset({&row, 1}, kIds, runs.size());
          std::uint32_t flags = 0;
          std::memcpy(&flags, found.data() + layout.flags_offset(), sizeof flags);
          std::vector<Candidate> candidates(kMost - (flags >> kLeftOutShift));
          std::memcpy(candidates.data(), found.data() + layout.candidates_offset(), candidates.size() * sizeof(Candidate));
          std::vector<std::uint64_t> keys;
          double mass = 0.0;
          for (const Candidate& candidate : candidates) {
            keys.push_back(candidate_key(candidate.logit, candidate.id));
            mass += weight_of(candidate.logit, top, scale);
          }
          std::sort(keys.begin(), keys.end());
          EXPECT_TRUE(std::equal(keys.begin(), keys.end(), order.begin())) << "scale " << scale << ", covered " << covered;
          if (candidates.size() < kMost) {
            EXPECT_GE(mass, covered * sum_of_exponentials(logits, top, scale, Isa::kPortable) * (1.0 + kMassError));
          }
        }
      }
    }
  }
}

/// Two ranks with half a row each. They leave out no more than a quarter of their share of what need not be covered, and nothing where one
/// of them does not know its mass.
TEST(Selection, RanksThatKnowAllMassesLeaveSomeCandidatesOut) {
  constexpr std::size_t kIds = 4096, kRanks = 2, kMost = 256;
  constexpr double kScale = 1.25, kCovered = 0.9;
  const std::vector<SegmentRun> runs = segment_runs(0, kIds / kVocabularySegment);
  std::vector<std::vector<float>> logits = {random_floats(kIds, 5, 200.0f), random_floats(kIds, 6, 199.5f)};
  const SelectionRow row{.scale = kScale, .covered = kCovered, .num_candidates = kMost};
  double total = 0.0;
  const float top = std::max(*std::max_element(logits[0].begin(), logits[0].end()), *std::max_element(logits[1].begin(), logits[1].end()));
  for (const std::vector<float>& part : logits) total += sum_of_exponentials(part, top, kScale, Isa::kPortable);
  SelectionLayout layout;
  layout.reset({&row, 1}, kIds, runs.size());
  for (const CpuOptions& options : all_options()) {
    for (const bool knows_masses : {true, false}) {
      std::vector<std::unique_ptr<Device>> devices;
      std::vector<float> peaks(kRanks * kPeakSize, 0.0f), own(peaks.size());
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const Matrix matrix{logits[rank].data(), kIds, 1, Activation::kFloat32};
        devices.push_back(make_cpu_device(options));
        devices[rank]->prepare_selection(1, runs);
        devices[rank]->top_of_rows(matrix, 1);
        devices[rank]->begin_selection(matrix, {{&row, 1}, {}}, rank, kRanks, own.data());
        for (std::size_t i = 0; i < peaks.size(); ++i) peaks[i] += own[i];
      }
      if (!knows_masses) peaks[kPeakSize + 2] = 0.0f;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        devices[rank]->finish_selection({logits[rank].data(), kIds, 1, Activation::kFloat32}, {{&row, 1}, {}}, kRanks, peaks.data());
        const std::span<const std::byte> found = devices[rank]->read_selection();
        std::uint32_t flags = 0;
        std::memcpy(&flags, found.data() + layout.flags_offset(), sizeof flags);
        const std::size_t count = kMost - (flags >> kLeftOutShift);
        if (!knows_masses) {
          EXPECT_EQ(count, kMost);
          continue;
        }
        EXPECT_LT(count, kMost) << "rank " << rank;
        std::vector<std::uint64_t> keys, order;
        double left = sum_of_exponentials(logits[rank], top, kScale, Isa::kPortable);
        for (std::size_t i = 0; i < count; ++i) {
          Candidate candidate;
          std::memcpy(&candidate, found.data() + layout.candidates_offset() + i * sizeof candidate, sizeof candidate);
          keys.push_back(candidate_key(candidate.logit, candidate.id));
          left -= weight_of(candidate.logit, top, kScale);
        }
        for (std::uint32_t id = 0; id < kIds; ++id) order.push_back(candidate_key(logits[rank][id], id));
        std::sort(keys.begin(), keys.end());
        std::sort(order.begin(), order.end());
        EXPECT_TRUE(std::equal(keys.begin(), keys.end(), order.begin()));
        EXPECT_LE(left, (1.0 - kCovered) * total / (4.0 * kRanks));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::device
