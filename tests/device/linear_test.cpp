#include <gtest/gtest.h>

#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ5_0, DType::kQ5_1,   DType::kQ2_K,   DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                            DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};

Activation activation_of(DType dtype) { return info(dtype).block_quantised() ? Activation::kInt8Blocks : Activation::kFloat32; }

/// Columns that are whole blocks of every type: 32, but as many as asked for where the type has no larger blocks.
std::size_t whole_columns(DType dtype, std::size_t columns) {
  const std::size_t block = info(dtype).block_size;
  return block <= 32 ? columns : (columns + block - 1) / block * block;
}

std::vector<float> run_linear(Device& device, const StoredWeight& w, const std::vector<float>& x, std::size_t tokens, const float* bias,
                              std::optional<Activation> activation = {}) {
  const auto weight = device.load_weight(w.spec, w.reader());
  const OwnedMatrix in = upload(device, x, w.spec.columns, activation.value_or(activation_of(w.spec.dtype)));
  const std::size_t rows = w.spec.num_roots() * tokens;
  const OwnedMatrix out = make_matrix(device, Activation::kFloat32, rows, w.spec.rows);
  device.linear(in.matrix, tokens, *weight, bias, out.matrix);
  return download(device, out.matrix, rows);
}

class LinearOfType : public testing::TestWithParam<DType> {};
class LinearOfBlocks : public testing::TestWithParam<DType> {};
class LinearOfSuperBlocks : public testing::TestWithParam<DType> {};

std::vector<DType> types_with_blocks_above(std::size_t size) {
  std::vector<DType> types(std::begin(kTypes), std::end(kTypes));
  std::erase_if(types, [&](DType dtype) { return info(dtype).block_size <= size; });
  return types;
}

TEST_P(LinearOfType, GivesTheBitsOfTheDefinitionOnEveryInstructionSetThreadCountAndBatchSize) {
  const DType dtype = GetParam();
  std::vector<std::pair<std::size_t, std::size_t>> shapes{{1, 32}, {5, 288}, {97, 288}, {160, 96}, {272, 1536}};
  if (!info(dtype).block_quantised()) shapes.insert(shapes.end(), {{97, 20}, {70, 33}, {3, 1}});
  const auto all = all_options();
  for (const auto& [rows, plain_columns] : shapes) {
    const std::size_t columns = whole_columns(dtype, plain_columns);
    for (const std::size_t leaves : {1, 9, 16}) {
      const StoredWeight w =
          make_weight(dtype, rows, columns, make_leaves(dtype, columns, leaves), static_cast<std::uint32_t>(rows + columns));
      for (const std::size_t tokens : {1, 2, 3, 5, 8, 13, 37}) {
        if (columns == 1536 && tokens != 1 && tokens != 3 && tokens != 13) continue;
        const std::vector<float> x = random_floats(tokens * columns, 7, 2.0f);
        const std::vector<float> bias = random_floats(rows, 8);
        const std::vector<float> expected = reference::linear(w, x, tokens, bias.data());
        for (const CpuOptions& options : all) {
          const auto device = make_cpu_device(options);
          EXPECT_EQ(count_different(run_linear(*device, w, x, tokens, bias.data()), expected), 0u)
              << device->description() << ", " << rows << " x " << columns << ", " << leaves << " leaves, " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(LinearOfSuperBlocks, AShardMayBeginAndEndInsideASuperBlock) {
  const DType dtype = GetParam();
  for (const auto& [first, columns] : {std::pair{32, 64}, std::pair{224, 32}, std::pair{96, 480}, std::pair{0, 160}, std::pair{160, 352}}) {
    const std::size_t from = static_cast<std::size_t>(first), count = static_cast<std::size_t>(columns);
    const StoredWeight w = make_weight(dtype, 37, count, make_leaves(dtype, count, 3), 17, from);
    for (const std::size_t tokens : {1, 5, 11}) {
      const std::vector<float> x = random_floats(tokens * count, 9, 2.0f);
      for (const Activation activation : {Activation::kInt8Blocks, Activation::kFloat32}) {
        const std::vector<float> expected = reference::linear(w, x, tokens, nullptr, activation);
        for (const CpuOptions& options : all_options()) {
          const auto device = make_cpu_device(options);
          EXPECT_EQ(count_different(run_linear(*device, w, x, tokens, nullptr, activation), expected), 0u)
              << device->description() << ", columns " << from << " + " << count << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(LinearOfBlocks, FloatActivationsGiveTheBitsOfExpandedWeights) {
  const DType dtype = GetParam();
  const std::size_t columns = whole_columns(dtype, 288);
  for (const std::size_t leaves : {1, 9}) {
    const StoredWeight w = make_weight(dtype, 97, columns, make_leaves(dtype, columns, leaves), 23);
    StoredWeight expanded{{"expanded", DType::kF32, 97, columns, w.spec.leaves}, {}};
    for (std::size_t row = 0; row < 97; ++row) {
      const std::vector<float> values = reference::expanded_row(w, row).values;
      const std::byte* bytes = reinterpret_cast<const std::byte*>(values.data());
      expanded.bytes.insert(expanded.bytes.end(), bytes, bytes + values.size() * sizeof(float));
    }
    for (const std::size_t tokens : {1, 2, 7, 131}) {
      const std::vector<float> x = random_floats(tokens * columns, 9, 2.0f);
      const std::vector<float> expected = reference::linear(w, x, tokens, nullptr, Activation::kFloat32);
      for (const CpuOptions& options : all_options()) {
        const auto device = make_cpu_device(options);
        EXPECT_EQ(count_different(run_linear(*device, w, x, tokens, nullptr, Activation::kFloat32), expected), 0u)
            << device->description() << ", " << leaves << " leaves, " << tokens << " tokens";
        EXPECT_EQ(count_different(run_linear(*device, expanded, x, tokens, nullptr), expected), 0u) << device->description();
      }
    }
  }
}

TEST_P(LinearOfType, RowsAfterTheTokenBlockOf128AreTheSameAsAlone) {
  const DType dtype = GetParam();
  const std::size_t columns = whole_columns(dtype, 64);
  const StoredWeight w = make_weight(dtype, 48, columns, make_leaves(dtype, columns, 2), 3);
  const std::vector<float> x = random_floats(131 * columns, 7, 2.0f);
  const std::vector<float> expected = reference::linear(w, x, 131, nullptr);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    EXPECT_EQ(count_different(run_linear(*device, w, x, 131, nullptr), expected), 0u) << device->description();
  }
}

TEST_P(LinearOfType, EveryRootOfAShareGoesToItsOwnRows) {
  const DType dtype = GetParam();
  // 5 leaves as the shares of a rank give them: a leaf alone, then two merged, then three levels are left apart.
  const std::size_t columns = 160;
  const std::vector<Leaf> leaves{{32, 0, true}, {64, 0, false}, {96, 1, true}, {128, 0, true}, {160, 0, true}};
  const StoredWeight w = make_weight(dtype, 21, columns, leaves, 5);
  for (const std::size_t tokens : {1, 6}) {
    const std::vector<float> x = random_floats(tokens * columns, 9);
    const std::vector<float> expected = reference::linear(w, x, tokens, nullptr);
    ASSERT_EQ(expected.size(), 4 * tokens * 21);
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      EXPECT_EQ(count_different(run_linear(*device, w, x, tokens, nullptr), expected), 0u) << device->description();
    }
  }
}

TEST_P(LinearOfType, NonFiniteActivationsStayNonFiniteAndSpoilNoOtherRow) {
  const DType dtype = GetParam();
  const StoredWeight w = make_weight(dtype, 33, 96, make_leaves(dtype, 96, 1), 6);
  for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
    std::vector<float> x = random_floats(3 * 96, 10);
    const std::vector<float> clean = reference::linear(w, x, 3, nullptr);
    x[96 + 40] = bad;
    for (const CpuOptions& options : all_options()) {
      const auto device = make_cpu_device(options);
      const std::vector<float> out = run_linear(*device, w, x, 3, nullptr);
      for (std::size_t row = 0; row < 33; ++row) {
        EXPECT_TRUE(same(out[row], clean[row]));
        EXPECT_FALSE(std::isfinite(out[33 + row])) << device->description() << " row " << row;
        EXPECT_TRUE(same(out[66 + row], clean[66 + row]));
      }
    }
  }
}

TEST_P(LinearOfType, EmbedGivesTheRowsAsTheyDequantiseAndZerosForIdsOfOtherRanks) {
  const DType dtype = GetParam();
  const std::size_t rows = 211, columns = whole_columns(dtype, 96);
  const std::int32_t first_id = 50;
  const StoredWeight w = make_weight(dtype, rows, columns, make_leaves(dtype, columns, 1), 11);
  StepBatch batch;
  for (std::size_t i = 0; i < 300; ++i) batch.token_ids.push_back(static_cast<std::int32_t>((i * 37) % 300));
  std::vector<float> expected(300 * columns);
  for (std::size_t i = 0; i < 300; ++i) {
    const std::int32_t row = batch.token_ids[i] - first_id;
    if (row < 0 || row >= 211) continue;
    const std::span to = std::span(expected).subspan(i * columns, columns);
    dequantise(dtype, std::span(w.row(static_cast<std::size_t>(row)), w.row_size()), to);
    for (float& value : to) value += 0.0f;  // no -0
  }
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const auto weight = device->load_weight(w.spec, w.reader());
    const OwnedMatrix out = make_matrix(*device, Activation::kFloat32, 300, columns);
    device->begin_step(batch);
    device->embed(weight.get(), first_id, out.matrix);
    EXPECT_EQ(count_different(download(*device, out.matrix, 300), expected), 0u) << device->description();
    device->embed(nullptr, 0, out.matrix);
    EXPECT_EQ(count_different(download(*device, out.matrix, 300), std::vector<float>(300 * columns)), 0u);
  }
}

std::string type_name(const testing::TestParamInfo<DType>& type) { return std::string(device::info(type.param).name); }

INSTANTIATE_TEST_SUITE_P(AllTypes, LinearOfType, testing::ValuesIn(kTypes), type_name);
INSTANTIATE_TEST_SUITE_P(BlockTypes, LinearOfBlocks, testing::ValuesIn(types_with_blocks_above(1)), type_name);
INSTANTIATE_TEST_SUITE_P(SuperBlockTypes, LinearOfSuperBlocks, testing::ValuesIn(types_with_blocks_above(32)), type_name);

TEST(Linear, AMatrixOfOnesGivesTheNumberOfColumns) {
  StoredWeight w{{"ones", DType::kF32, 18, 40, make_leaves(DType::kF32, 40, 1)}, {}};
  const std::vector<float> ones(18 * 40, 1.0f);
  w.bytes.resize(ones.size() * 4);
  std::memcpy(w.bytes.data(), ones.data(), w.bytes.size());
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const float value : run_linear(*device, w, std::vector<float>(2 * 40, 1.0f), 2, nullptr)) EXPECT_EQ(value, 40.0f);
  }
}

TEST(Linear, AShardWithoutRowsIsFine) {
  const StoredWeight w = make_weight(DType::kQ8_0, 0, 64, make_leaves(DType::kQ8_0, 64, 1), 1);
  const auto device = make_cpu_device({2});
  EXPECT_TRUE(run_linear(*device, w, random_floats(64, 1), 1, nullptr).empty());
}

TEST(LoadWeight, ReadsAFewPanelsAtATimeAndPassesOnAFailure) {
  const StoredWeight w = make_weight(DType::kF16, 1000, 64, make_leaves(DType::kF16, 64, 1), 1);
  const auto device = make_cpu_device({3});
  std::atomic<std::size_t> largest{0}, rows{0};
  device->load_weight(w.spec, [&](std::size_t first, std::size_t count, std::span<std::byte> to) {
    w.reader()(first, count, to);
    rows += count;
    std::size_t seen = largest;
    while (count > seen && !largest.compare_exchange_weak(seen, count)) {
    }
  });
  EXPECT_EQ(rows, 1000u);
  EXPECT_LE(largest, 64u);
  EXPECT_THROW(device->load_weight(w.spec, [](std::size_t, std::size_t, std::span<std::byte>) { throw std::runtime_error("short file"); }),
               std::runtime_error);
  EXPECT_NO_THROW(device->load_weight(w.spec, w.reader()));  // the device lives on
}

TEST(LoadWeight, RefusesLeavesThatMakeNoSense) {
  const auto device = make_cpu_device({1});
  const auto load = [&](DType dtype, std::vector<Leaf> leaves) {
    const StoredWeight w = make_weight(dtype, 16, 64, std::move(leaves), 1);
    return device->load_weight(w.spec, w.reader());
  };
  EXPECT_THROW(load(DType::kF32, {}), std::invalid_argument);
  EXPECT_THROW(load(DType::kF32, {{32, 0, true}}), std::invalid_argument);                  // columns are left over
  EXPECT_THROW(load(DType::kF32, {{32, 0, false}, {64, 0, true}}), std::invalid_argument);  // two sums at a root
  EXPECT_THROW(load(DType::kF32, {{32, 1, false}, {64, 1, true}}), std::invalid_argument);  // nothing to merge with
  EXPECT_THROW(load(DType::kF32, {{32, 0, true}, {32, 0, true}, {64, 0, true}}), std::invalid_argument);
  EXPECT_THROW(load(DType::kQ8_0, {{16, 0, true}, {64, 0, true}}), std::invalid_argument);  // within a block
  EXPECT_NO_THROW(load(DType::kQ8_0, {{32, 0, false}, {64, 1, true}}));
}

}  // namespace
}  // namespace lockstep::device
