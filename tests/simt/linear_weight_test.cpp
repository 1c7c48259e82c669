// Weights on their way to the GPU, and embeddings from their packed order.
#include <atomic>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "device/cuda/weight_packing.h"
#include "tests/simt/linear_support.h"

namespace lockstep::device::cuda {
namespace {

using namespace testing_support;

class WeightOfType : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { simt::reset(); }
};

std::vector<float> run_embed(const Gpu& gpu, const CudaWeight* table, std::int32_t first_id, const std::vector<std::int32_t>& ids,
                             std::size_t columns) {
  const DeviceMemory token_ids = to_device(ids);
  const DeviceMemory out = to_device(std::vector<float>(ids.size() * columns, -1.0f));
  StepView step;
  step.token_ids = token_ids.as<std::int32_t>();
  step.num_tokens = static_cast<std::uint32_t>(ids.size());
  embed(gpu.launch(), table, first_id, step, {out.data(), columns, columns, Activation::kFloat32});
  gpu.synchronize();
  return floats_of(out);
}

TEST_P(WeightOfType, EmbedsAsItDequantisesWithZerosForIdsOfOthersAndPads) {
  const DType dtype = GetParam();
  const std::size_t rows = 75, columns = 288;
  const std::int32_t first_id = 20;
  const StoredWeight w = reference::make_weight(dtype, rows, columns, reference::make_leaves(dtype, columns, 1), 1);
  std::vector<std::int32_t> ids{-1};
  for (std::int32_t id = 0; id < 110; ++id) ids.push_back(id);
  std::vector<float> expected(ids.size() * columns);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int32_t row = ids[i] - first_id;
    if (row < 0 || row >= 75) continue;
    const std::span to = std::span(expected).subspan(i * columns, columns);
    dequantise(dtype, std::span(w.row(static_cast<std::size_t>(row)), w.row_size()), to);
    for (float& value : to) value += 0.0f;  // no -0
  }
  const Gpu gpu;
  EXPECT_TRUE(same_bytes(run_embed(gpu, load_cuda_weight(w.spec, w.reader()).get(), first_id, ids, columns), expected));
}

TEST_P(WeightOfType, EmbedNeverGivesMinusZero) {
  const DType dtype = GetParam();
  StoredWeight w = reference::make_weight(dtype, 3, 64, reference::make_leaves(dtype, 64, 1), 2);
  std::fill(w.bytes.begin(), w.bytes.end(), std::byte{0});
  const DTypeInfo& type = info(dtype);
  for (std::size_t at = 0; at < w.bytes.size(); at += type.block_bytes) {  // -0, or a scale of -0
    w.bytes[at + (type.block_quantised() ? 2 : type.block_bytes) - 1] = std::byte{0x80};
  }
  const Gpu gpu;
  EXPECT_TRUE(same_bytes(run_embed(gpu, load_cuda_weight(w.spec, w.reader()).get(), 0, {0, 1, 2}, 64), std::vector<float>(3 * 64)));
}

TEST_P(WeightOfType, PacksEveryNumberToAPlaceOfItsOwn) {
  const DType dtype = GetParam();
  const std::size_t columns = 96;
  StoredWeight w = reference::make_weight(dtype, 32, columns, reference::make_leaves(dtype, columns, 3), 3);
  const SlicePlan plan = plan_slices(w.spec);
  std::vector<std::byte> panel(panel_bytes(w.spec, plan)), changed(panel.size());
  pack_panel(w.spec, plan, w.bytes, panel);
  std::set<std::size_t> places;
  for (std::size_t at = 0; at < w.bytes.size(); ++at) {  // each byte of the file decides one byte of the panel, or two halves of some
    if (at % 7 != 0) continue;
    w.bytes[at] ^= std::byte{0xFF};
    pack_panel(w.spec, plan, w.bytes, changed);
    w.bytes[at] ^= std::byte{0xFF};
    std::size_t bits = 0;
    for (std::size_t i = 0; i < panel.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        if (((panel[i] ^ changed[i]) >> bit & std::byte{1}) == std::byte{0}) continue;
        ++bits;
        EXPECT_TRUE(places.insert(8 * i + static_cast<std::size_t>(bit)).second) << "byte " << at;
      }
    }
    EXPECT_EQ(bits, 8u) << "byte " << at;
  }
}

TEST_P(WeightOfType, IsTheSameBytesWhateverTheNumberOfThreadsThatLoadIt) {
  const DType dtype = GetParam();
  const StoredWeight w = reference::make_weight(dtype, 1000, 512, reference::make_leaves(dtype, 512, 3), 5);
  const auto alone = load_cuda_weight(w.spec, w.reader());
  device::cpu::ThreadPool threads(3);
  std::atomic<std::size_t> rows{0};
  const auto read = [&](std::size_t first, std::size_t count, std::span<std::byte> to) {
    rows += count;
    w.reader()(first, count, to);
  };
  const auto together = load_cuda_weight(w.spec, read, PlainRows::kDrop, &threads);
  EXPECT_EQ(rows, 1000u);
  ASSERT_EQ(together->size_bytes(), alone->size_bytes());
  EXPECT_EQ(std::memcmp(together->data(), alone->data(), alone->size_bytes()), 0);  // an emulated GPU's memory is the host's
}

TEST_P(WeightOfType, IsReadInPiecesThatCoverEveryRowOnce) {
  const DType dtype = GetParam();
  const StoredWeight w = reference::make_weight(dtype, 1000, 8192, reference::make_leaves(dtype, 8192, 1), 4);
  std::size_t next = 0, largest = 0;
  const auto weight = load_cuda_weight(w.spec, [&](std::size_t first, std::size_t count, std::span<std::byte> to) {
    EXPECT_EQ(first, next);
    next = first + count;
    largest = std::max(largest, to.size());
    w.reader()(first, count, to);
  });
  EXPECT_EQ(next, 1000u);
  EXPECT_LE(largest, std::size_t{8} << 20);
  EXPECT_GE(weight->size_bytes(), w.bytes.size());
  EXPECT_LE(weight->size_bytes(), w.bytes.size() / 1000 * 1024);  // rows to a multiple of 32, and no more
  const Gpu gpu;
  std::vector<float> expected(8192);
  dequantise(dtype, std::span(w.row(999), w.row_size()), expected);
  for (float& value : expected) value += 0.0f;
  EXPECT_TRUE(same_bytes(run_embed(gpu, weight.get(), 0, {999}, 8192), expected));
}

TEST_P(WeightOfType, WithoutRowsIsFine) {
  const DType dtype = GetParam();
  const StoredWeight w = reference::make_weight(dtype, 0, 64, reference::make_leaves(dtype, 64, 1), 5);
  const auto weight = load_cuda_weight(w.spec, w.reader());
  EXPECT_EQ(weight->size_bytes(), 0u);
  const Gpu gpu;
  EXPECT_TRUE(run_linear(gpu, *weight, reference::random_floats(64, 6), 1).empty());
  EXPECT_TRUE(same_bytes(run_embed(gpu, weight.get(), 0, {0, 5}, 64), std::vector<float>(2 * 64)));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, WeightOfType,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

class CudaWeightTest : public testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
};

TEST_F(CudaWeightTest, ANullTableEmbedsZeros) {
  const Gpu gpu;
  EXPECT_TRUE(same_bytes(run_embed(gpu, nullptr, 7, {0, 7, -1}, 40), std::vector<float>(3 * 40)));
}

TEST_F(CudaWeightTest, TypesWithoutKernelsAreBfloat16FromTheStart) {
  for (const DType dtype : {DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                            DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4}) {
    const std::size_t rows = 40, columns = 192, first_column = info(dtype).block_size > 32 ? 160 : 0;  // a shard cut inside super-blocks
    const StoredWeight w = reference::make_weight(dtype, rows, columns, reference::make_leaves(dtype, columns, 3), 5, first_column);
    StoredWeight rounded{{"rounded", DType::kBF16, rows, columns, w.spec.leaves}, {}};
    for (std::size_t row = 0; row < rows; ++row) {
      for (const float value : reference::expanded_row(w, row).values) {
        const std::uint16_t bits = float_to_bfloat16(value);
        const std::byte* bytes = reinterpret_cast<const std::byte*>(&bits);
        rounded.bytes.insert(rounded.bytes.end(), bytes, bytes + 2);
      }
    }
    const Gpu gpu;
    const auto weight = load_cuda_weight(w.spec, w.reader()), plain = load_cuda_weight(rounded.spec, rounded.reader());
    const std::vector<float> x = reference::random_floats(5 * columns, 6);
    EXPECT_TRUE(same_bytes(run_linear(gpu, *weight, x, 5), run_linear(gpu, *plain, x, 5))) << info(dtype).name;
  }
}

TEST_F(CudaWeightTest, PassesOnWhatTheReaderThrows) {
  const StoredWeight w = reference::make_weight(DType::kF16, 100, 64, reference::make_leaves(DType::kF16, 64, 1), 1);
  const auto fail = [](std::size_t, std::size_t, std::span<std::byte>) { throw std::runtime_error("short file"); };
  EXPECT_THROW(load_cuda_weight(w.spec, fail), std::runtime_error);
}

TEST_F(CudaWeightTest, SaysWhichWeightFoundNoMemory) {
  simt::config().memory_bytes = 1 << 20;
  const StoredWeight w = reference::make_weight(DType::kF32, 1024, 512, reference::make_leaves(DType::kF32, 512, 1), 1);
  try {
    load_cuda_weight(w.spec, w.reader());
    FAIL() << "2 MiB found room in 1 MiB";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), cudaErrorMemoryAllocation);
    EXPECT_NE(std::string(error.what()).find("test.F32"), std::string::npos) << error.what();
  }
}

TEST_F(CudaWeightTest, RefusesLeavesThatMakeNoSense) {
  const auto load = [&](DType dtype, std::vector<Leaf> leaves) {
    const StoredWeight w = reference::make_weight(dtype, 16, 64, std::move(leaves), 1);
    return load_cuda_weight(w.spec, w.reader());
  };
  EXPECT_THROW(load(DType::kF32, {}), std::invalid_argument);
  EXPECT_THROW(load(DType::kF32, {{32, 0, true}}), std::invalid_argument);                  // columns are left over
  EXPECT_THROW(load(DType::kF32, {{32, 0, false}, {64, 0, true}}), std::invalid_argument);  // two sums at a root
  EXPECT_THROW(load(DType::kF32, {{32, 1, false}, {64, 1, true}}), std::invalid_argument);  // nothing to merge with
  EXPECT_THROW(load(DType::kF32, {{32, 0, true}, {32, 0, true}, {64, 0, true}}), std::invalid_argument);
  EXPECT_THROW(load(DType::kQ8_0, {{16, 0, true}, {64, 0, true}}), std::invalid_argument);  // within a block
  EXPECT_NO_THROW(load(DType::kQ8_0, {{32, 0, false}, {64, 1, true}}));
}

TEST_F(CudaWeightTest, RefusesMatricesThatDoNotFit) {
  const StoredWeight w = reference::make_weight(DType::kBF16, 16, 64, reference::make_leaves(DType::kBF16, 64, 2, true), 1);
  const auto weight = load_cuda_weight(w.spec, w.reader());
  const Gpu gpu;
  const DeviceRows in = make_rows(std::vector<float>(64), 64, Activation::kBFloat16);
  const DeviceRows narrow = make_rows(std::vector<float>(56), 56, Activation::kBFloat16);
  const DeviceRows floats = make_rows(std::vector<float>(64), 64, Activation::kFloat32);
  const DeviceRows out = make_rows(std::vector<float>(2 * 20), 20, Activation::kFloat32);
  EXPECT_NO_THROW(linear(gpu.launch(), in.rows, 1, *weight, nullptr, out.rows, 4));
  EXPECT_THROW(linear(gpu.launch(), in.rows, 1, *weight, nullptr, out.rows, 5), std::invalid_argument);
  EXPECT_THROW(linear(gpu.launch(), narrow.rows, 1, *weight, nullptr, out.rows, 0), std::invalid_argument);
  EXPECT_THROW(linear(gpu.launch(), floats.rows, 1, *weight, nullptr, out.rows, 0), std::invalid_argument);
  EXPECT_THROW(linear(gpu.launch(), in.rows, 1, *weight, out.memory.as<float>(), out.rows, 0), std::invalid_argument);  // two roots
  gpu.synchronize();
}

TEST_F(CudaWeightTest, SlicesAreAFunctionOfTheLeafAlone) {
  const auto sizes = [](std::size_t columns, std::vector<Leaf> leaves) {
    const SlicePlan plan = plan_slices({"w", DType::kBF16, 32, columns, std::move(leaves)});
    std::vector<std::uint32_t> units;
    for (const Slice& slice : plan.slices) units.push_back(slice.end_unit - slice.first_unit);
    return units;
  };
  EXPECT_EQ(sizes(4096, {{4096, 0, true}}), std::vector<std::uint32_t>(8, 16));
  EXPECT_EQ(sizes(288, {{288, 0, true}}), (std::vector<std::uint32_t>{4, 5}));
  EXPECT_EQ(sizes(7, {{7, 0, true}}), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(sizes(7 + 288, {{7, 0, true}, {295, 0, true}}), (std::vector<std::uint32_t>{1, 4, 5}));
}

}  // namespace
}  // namespace lockstep::device::cuda
