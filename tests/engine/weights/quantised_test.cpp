// Quantised Hugging Face checkpoints: the reference values are made by the formulas that the quantisers publish, in tests/support.
#include <cmath>
#include <functional>

#include <nlohmann/json.hpp>

#include "engine/weights/quantisation.h"
#include "engine/weights/safetensors.h"
#include "support.h"
#include "tests/support/quantised_folder.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using device::DType;
using nlohmann::json;
using test::GroupedMatrix;
using test::SafetensorsBuilder;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A file of quantised tensors, opened.
class Opened {
 public:
  Opened(const SafetensorsBuilder& file, const json& config) {
    const auto path = folder_.write("model.safetensors", file.str());
    const json whole{{"quantization_config", config}, {"torch_dtype", "bfloat16"}};
    quantisation_ = *quantisation_from_config(whole.dump(), "config.json");
    source_ = unite_quantised(read_safetensors(path), quantisation_);
  }
  const WeightSource& source() const { return *source_; }
  const StoredTensor& tensor(const std::string& name = "m.weight") const { return *source_->find(name); }
  std::vector<float> slice(const MatrixSlice& slice) const {
    const StoredTensor& stored = tensor();
    std::vector<std::byte> bytes(slice.num_rows * device::row_bytes(stored.dtype, slice.num_columns));
    source_->read_rows(stored, slice.first_row, slice.num_rows, slice.first_column, slice.num_columns, bytes);
    std::vector<float> values(slice.num_rows * slice.num_columns);
    device::dequantise(stored.dtype, bytes, values);
    return values;
  }

 private:
  TemporaryFolder folder_;
  Quantisation quantisation_;
  std::unique_ptr<WeightSource> source_;
};

std::string open_error(const SafetensorsBuilder& file, const json& config) {
  return error_of([&] { const Opened opened(file, config); });
}

std::vector<float> part_of(const std::vector<float>& values, std::size_t columns, const MatrixSlice& slice) {
  std::vector<float> part;
  for (std::size_t row = slice.first_row; row < slice.first_row + slice.num_rows; ++row) {
    for (std::size_t column = slice.first_column; column < slice.first_column + slice.num_columns; ++column)
      part.push_back(values[row * columns + column]);
  }
  return part;
}

/// The whole, and slices that begin within words, groups and blocks of scales, are the reference's values to the bit.
void expect_values(const Opened& opened, const std::vector<float>& expected, const std::string& what) {
  const StoredTensor& tensor = opened.tensor();
  const std::size_t rows = tensor.rows(), columns = tensor.columns();
  ASSERT_EQ(rows * columns, expected.size()) << what;
  const MatrixSlice slices[] = {
      {0, rows, 0, columns}, {0, rows, 32, 64}, {3, 5, 0, columns}, {rows - 1, 1, columns - 32, 32}, {2, 0, 0, columns}};
  for (const MatrixSlice& slice : slices) {
    const auto wanted = part_of(expected, columns, slice);
    const auto found = opened.slice(slice);
    ASSERT_EQ(found.size(), wanted.size());
    if (wanted.empty()) continue;
    EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)), 0)
        << what << ": rows " << slice.first_row << " + " << slice.num_rows << ", columns " << slice.first_column << " + "
        << slice.num_columns;
  }
}

json gptq(unsigned bits, int group_size, bool symmetric, bool any_order, const char* format = "gptq") {
  return {{"quant_method", "gptq"}, {"bits", bits},          {"group_size", group_size},
          {"sym", symmetric},       {"desc_act", any_order}, {"checkpoint_format", format}};
}

json awq(int group_size) {
  return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", group_size}, {"zero_point", true}, {"version", "gemm"}};
}

TEST(Gptq, EachVariantGivesQuantLessZeroTimesScaleInTheSmallestExactType) {
  struct Case {
    unsigned bits;
    bool symmetric, any_order, version_2;
    DType dtype;
  };
  const Case cases[] = {{4, true, false, false, DType::kQ4_0}, {4, true, false, true, DType::kQ4_0}, {4, false, false, false, DType::kQ8_0},
                        {4, false, false, true, DType::kQ8_0}, {4, true, true, false, DType::kF32},  {4, false, true, true, DType::kF32},
                        {8, true, false, false, DType::kQ8_0}, {8, false, false, true, DType::kF32}, {8, true, true, false, DType::kF32},
                        {8, false, false, false, DType::kF32}};
  std::uint32_t seed = 1;
  for (const Case& each : cases) {
    const std::string what = std::to_string(each.bits) + " bits, sym " + std::to_string(each.symmetric) + ", desc_act " +
                             std::to_string(each.any_order) + (each.version_2 ? ", v2" : "");
    const GroupedMatrix matrix = test::random_grouped(16, 128, each.bits, 32, each.symmetric, each.any_order, seed++);
    SafetensorsBuilder file;
    test::add_gptq(file, "m", matrix, each.version_2);
    const Opened opened(file, gptq(each.bits, 32, each.symmetric, each.any_order, each.version_2 ? "gptq_v2" : "gptq"));
    EXPECT_EQ(opened.tensor().dtype, each.dtype) << what;
    EXPECT_EQ(opened.tensor().load_dtype, each.dtype == DType::kF32 ? std::optional(DType::kF16) : std::nullopt) << what;
    EXPECT_EQ(opened.tensor().format, "GPTQ " + std::to_string(each.bits) + "-bit");
    EXPECT_EQ(opened.source().tensors().size(), 1u) << "its parts are no tensors of the model";
    expect_values(opened, matrix.values(), what);
  }
}

TEST(Gptq, GroupsMayBeTheWholeRowOrCutBlocks) {
  const GroupedMatrix whole = test::random_grouped(8, 96, 4, 96, true, false, 5);
  SafetensorsBuilder file;
  test::add_gptq(file, "m", whole);
  const Opened opened(file, gptq(4, -1, true, false));
  EXPECT_EQ(opened.tensor().dtype, DType::kQ4_0);
  expect_values(opened, whole.values(), "one group");

  const GroupedMatrix small = test::random_grouped(8, 96, 4, 48, true, false, 6);
  SafetensorsBuilder second;
  test::add_gptq(second, "m", small);
  const Opened expanded(second, gptq(4, 48, true, false));
  EXPECT_EQ(expanded.tensor().dtype, DType::kF32) << "a block of 32 would have two scales";
  expect_values(expanded, small.values(), "groups of 48");
}

TEST(Awq, NibblesAreTakenInTheirInterleavedOrder) {
  const GroupedMatrix matrix = test::random_grouped(16, 128, 4, 64, false, false, 7);
  SafetensorsBuilder file;
  test::add_awq(file, "m", matrix);
  const Opened opened(file, awq(64));
  EXPECT_EQ(opened.tensor().dtype, DType::kQ8_0);
  EXPECT_EQ(opened.tensor().format, "AWQ 4-bit");
  expect_values(opened, matrix.values(), "AWQ");
}

TEST(Gptq, ASliceReadsItsOwnBytesOnly) {
  const GroupedMatrix matrix = test::random_grouped(64, 256, 4, 32, true, false, 8);
  SafetensorsBuilder file;
  test::add_gptq(file, "m", matrix);
  const Opened columns(file, gptq(4, 32, true, false));
  columns.slice({0, 64, 64, 64});  // a quarter of the columns
  const std::size_t quants = 64 * 256 / 2, zeros = 8 * 64 / 2, scales = 8 * 64 * 2, order = 256 * 4;
  EXPECT_EQ(columns.source().bytes_read(), (quants + zeros + scales) / 4 + order);
  const Opened rows(file, gptq(4, 32, true, false));
  rows.slice({16, 16, 0, 256});
  EXPECT_EQ(rows.source().bytes_read(), (quants + zeros + scales) / 4 + order);
}

TEST(Gptq, RowsOfAnOpenedSliceAreReadOnceFromTheFile) {
  const GroupedMatrix matrix = test::random_grouped(64, 256, 4, 32, true, false, 9);
  SafetensorsBuilder file;
  test::add_gptq(file, "m", matrix);
  const Opened opened(file, gptq(4, 32, true, false));
  const auto reader = opened.source().open_rows(opened.tensor(), {0, 64, 0, 256});
  const std::uint64_t after_open = opened.source().bytes_read();
  std::vector<std::byte> row(device::row_bytes(DType::kQ4_0, 256));
  std::vector<float> values(256);
  const std::vector<float> expected = matrix.values();
  for (const std::size_t at : {63u, 0u, 17u}) {
    reader->read(at, 1, row);
    device::dequantise(DType::kQ4_0, row, values);
    EXPECT_EQ(values, part_of(expected, 256, {at, 1, 0, 256}));
  }
  EXPECT_EQ(opened.source().bytes_read(), after_open);
}

TEST(Gptq, DataThatContradictTheConfigurationAreRefusedByName) {
  const GroupedMatrix matrix = test::random_grouped(16, 128, 4, 32, false, true, 10);
  SafetensorsBuilder file;
  test::add_gptq(file, "m", matrix);
  const Opened said_symmetric(file, gptq(4, 32, true, true));
  EXPECT_THAT(error_of([&] {
                said_symmetric.slice({0, 16, 0, 128});
              }),
              AllOf(HasSubstr("model.safetensors: tensor 'm.qzeros' has zero point "), HasSubstr("config.json says sym: true")));
  const Opened said_ordered(file, gptq(4, 32, false, false));
  EXPECT_THAT(error_of([&] {
                said_ordered.slice({0, 16, 0, 128});
              }),
              AllOf(HasSubstr("tensor 'm.g_idx' puts column "), HasSubstr("config.json says desc_act: false")));
  GroupedMatrix outside = matrix;
  outside.group[7] = 99;
  SafetensorsBuilder wrong;
  test::add_gptq(wrong, "m", outside);
  const Opened opened(wrong, gptq(4, 32, false, true));
  EXPECT_THAT(error_of([&] { opened.slice({0, 16, 0, 128}); }), HasSubstr("tensor 'm.g_idx' puts column 7 into group 99, of 4"));
}

TEST(Gptq, MissingDuplicateAndMisshapenPartsAreRefusedBeforeWeightsAreRead) {
  const GroupedMatrix matrix = test::random_grouped(16, 128, 4, 32, true, false, 11);
  const json config = gptq(4, 32, true, false);
  SafetensorsBuilder no_scales;
  no_scales.add("m.qweight", "I32", {16, 16}, std::vector<std::uint32_t>(256))
      .add("m.qzeros", "I32", {4, 2}, std::vector<std::uint32_t>(8));
  EXPECT_THAT(open_error(no_scales, config),
              AllOf(HasSubstr("model.safetensors: tensor 'm.qweight' needs 'm.scales', which is missing"), HasSubstr("config.json: gptq")));
  SafetensorsBuilder both;
  test::add_gptq(both, "m", matrix);
  both.add("m.weight", "F32", {16, 128}, std::vector<float>(16 * 128));
  EXPECT_THAT(open_error(both, config), HasSubstr("tensor 'm.qweight' is there beside 'm.weight'"));
  SafetensorsBuilder groups;
  test::add_gptq(groups, "m", matrix);
  EXPECT_THAT(open_error(groups, gptq(4, 64, true, false)),
              HasSubstr("tensor 'm.qzeros' has type 'I32' and shape [4, 2], where 'I32' of [2, 2] is needed"));
  EXPECT_THAT(open_error(groups, gptq(8, 32, true, false)), HasSubstr("tensor 'm.qzeros'"));
  SafetensorsBuilder flat;
  flat.add("m.qweight", "I32", {256}, std::vector<std::uint32_t>(256));
  EXPECT_THAT(open_error(flat, config), HasSubstr("tensor 'm.qweight' has type 'I32' and shape [256], where 'I32' of two axes is needed"));
  SafetensorsBuilder plain;
  plain.add("m.weight", "F32", {2, 2}, std::vector<float>(4));
  EXPECT_THAT(open_error(plain, config), HasSubstr("config.json: quantization_config says 'gptq', but no tensor is quantised that way"));
}

TEST(Mxfp4, NumbersAndPowersOfTwoAreTakenAsTheyStandAndSlicesReadTheirOwnBytes) {
  SafetensorsBuilder file;
  const std::vector<float> values = test::add_mxfp4(file, "m.weight", 3, 8, 128, 1);
  const json config{{"quant_method", "mxfp4"}};
  const Opened opened(file, config);
  EXPECT_EQ(opened.tensor().dtype, DType::kMXFP4);
  EXPECT_EQ(opened.tensor().shape, (std::vector<std::size_t>{3, 8, 128}));
  EXPECT_EQ(opened.tensor().load_dtype, std::nullopt);
  EXPECT_EQ(opened.source().tensors().size(), 1u) << "its parts are no tensors of the model";
  expect_values(opened, values, "mxfp4");
  const Opened other(file, config);
  other.slice({8, 8, 32, 64});
  EXPECT_EQ(other.source().bytes_read(), 8u * 2 * 17);
}

TEST(Mxfp4, MissingDuplicateAndMisshapenPartsAreRefusedBeforeWeightsAreRead) {
  const json config{{"quant_method", "mxfp4"}};
  const auto with = [](const std::vector<std::size_t>& blocks, const char* type, const std::vector<std::size_t>& scales) {
    SafetensorsBuilder file;
    std::size_t count = 1, scale_count = 1;
    for (const std::size_t axis : blocks) count *= axis;
    for (const std::size_t axis : scales) scale_count *= axis;
    file.add("m_blocks", "U8", blocks, std::string(count, '\0'));
    if (!scales.empty()) file.add("m_scales", type, scales, std::string(scale_count * (type[0] == 'F' ? 4 : 1), '\0'));
    return file;
  };
  EXPECT_THAT(open_error(with({2, 4, 1, 16}, "U8", {}), config),
              AllOf(HasSubstr("model.safetensors: tensor 'm_blocks' needs 'm_scales', which is missing"), HasSubstr("config.json: mxfp4")));
  EXPECT_THAT(open_error(with({2, 4, 1, 8}, "U8", {2, 4, 1}), config),
              HasSubstr("tensor 'm_blocks' has type 'U8' and shape [2, 4, 1, 8], where 'U8' of [..., rows, columns / 32, 16] is needed"));
  EXPECT_THAT(open_error(with({4, 16}, "U8", {4}), config), HasSubstr("tensor 'm_blocks' has type 'U8' and shape [4, 16]"));
  EXPECT_THAT(open_error(with({2, 4, 2, 16}, "U8", {2, 4, 1}), config),
              HasSubstr("tensor 'm_scales' has type 'U8' and shape [2, 4, 1], where 'U8' of [2, 4, 2] is needed"));
  EXPECT_THAT(open_error(with({2, 4, 1, 16}, "F32", {2, 4, 1}), config), HasSubstr("tensor 'm_scales' has type F32"));
  SafetensorsBuilder both = with({2, 4, 1, 16}, "U8", {2, 4, 1});
  both.add("m", "F32", {2, 4, 32}, std::vector<float>(256));
  EXPECT_THAT(open_error(both, config), HasSubstr("tensor 'm_blocks' is there beside 'm'"));
  SafetensorsBuilder plain;
  plain.add("m", "F32", {2, 2}, std::vector<float>(4));
  EXPECT_THAT(open_error(plain, config), HasSubstr("config.json: quantization_config says 'mxfp4', but no tensor is quantised that way"));
}

/// fp8 codes of a matrix: every code that is a number.
std::string codes(std::size_t count, bool e5m2) {
  std::string bytes;
  for (unsigned code = 1; bytes.size() < count; code += 7) {
    const unsigned magnitude = code & 0x7Fu;
    if (e5m2 ? magnitude < 0x7Cu : magnitude != 0x7Fu) bytes += static_cast<char>(code & 0xFFu);
  }
  return bytes;
}

/// By the formula of the paper, in another way than the library's.
float float8(char byte, bool e5m2) {
  const auto code = static_cast<unsigned char>(byte);
  const int mantissa_bits = e5m2 ? 2 : 3;
  const int bias = e5m2 ? 15 : 7;
  const int exponent = (code & 0x7F) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const double value = whole * std::pow(2.0, std::max(exponent, 1) - bias - mantissa_bits);
  return static_cast<float>((code & 0x80) != 0 ? -value : value);
}

TEST(Float8, ScalesAreOfTheWholeOrOfARowOrOfABlock) {
  constexpr std::size_t kRows = 20, kColumns = 96;
  struct Case {
    std::string scale_name, scale_type;
    std::vector<std::size_t> shape;
    std::size_t block_rows, block_columns;
    json config;
  };
  const json block{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {8, 32}}};
  const json compressed{{"quant_method", "compressed-tensors"},
                        {"format", "float-quantized"},
                        {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}}}}}};
  const Case cases[] = {{"m.weight_scale_inv", "F32", {3, 3}, 8, 32, block},
                        {"m.weight_scale", "F32", {}, kRows, kColumns, {{"quant_method", "fp8"}}},
                        {"m.weight_scale", "BF16", {1}, kRows, kColumns, {{"quant_method", "fp8"}}},
                        {"m.weight_scale", "F32", {kRows, 1}, 1, kColumns, {{"quant_method", "fbgemm_fp8"}}},
                        {"m.weight_scale", "BF16", {kRows, 1}, 1, kColumns, compressed},
                        {"m.weight_scale", "F16", {kRows}, 1, kColumns, compressed}};
  for (const bool e5m2 : {false, true}) {
    for (const Case& each : cases) {
      const std::string bytes = codes(kRows * kColumns, e5m2);
      const std::size_t scale_columns = (kColumns + each.block_columns - 1) / each.block_columns;
      std::size_t count = 1;
      for (const std::size_t axis : each.shape) count *= axis;
      std::string stored;
      std::vector<float> scales;
      for (std::size_t i = 0; i < count; ++i) {
        const float scale = 0.001f * static_cast<float>(i + 1) * (i % 3 == 0 ? 1.7f : 0.3f);
        const std::uint16_t half = each.scale_type == "F16" ? device::float_to_half(scale) : device::float_to_bfloat16(scale);
        if (each.scale_type == "F32") {
          stored += Bytes().number(scale).str();
          scales.push_back(scale);
        } else {
          stored += Bytes().number(half).str();
          scales.push_back(each.scale_type == "F16" ? device::half_to_float(half) : device::bfloat16_to_float(half));
        }
      }
      std::vector<float> expected;
      for (std::size_t row = 0; row < kRows; ++row) {
        for (std::size_t column = 0; column < kColumns; ++column) {
          expected.push_back(float8(bytes[row * kColumns + column], e5m2) *
                             scales[row / each.block_rows * scale_columns + column / each.block_columns]);
        }
      }
      SafetensorsBuilder file;
      file.add("m.weight", e5m2 ? "F8_E5M2" : "F8_E4M3", {kRows, kColumns}, bytes)
          .add(each.scale_name, each.scale_type, each.shape, stored);
      const Opened opened(file, each.config);
      EXPECT_EQ(opened.tensor().dtype, DType::kF32);
      EXPECT_EQ(opened.tensor().load_dtype, DType::kBF16) << "as torch_dtype says";
      expect_values(opened, expected, each.scale_name + " " + each.scale_type + " " + shape_text(each.shape));
    }
  }
}

TEST(Float8, TheLargestAndTheSpecialCodesAreTheirNumbers) {
  SafetensorsBuilder file;
  file.add("m.weight", "F8_E4M3", {1, 32}, std::string("\x7E\xFE\x01\x08\x80\x7F", 6) + std::string(26, '\0'));
  file.add("m.weight_scale", "F32", {}, std::vector<float>{1.0f});
  const std::vector<float> values = Opened(file, {{"quant_method", "fp8"}}).slice({0, 1, 0, 32});
  EXPECT_EQ(values[0], 448.0f);
  EXPECT_EQ(values[1], -448.0f);
  EXPECT_EQ(values[2], 0x1p-9f);
  EXPECT_EQ(values[3], 0x1p-6f);
  EXPECT_TRUE(values[4] == 0.0f && std::signbit(values[4]));
  EXPECT_TRUE(std::isnan(values[5]));
}

TEST(Float8, MissingDoubleAndMisshapenScalesAreRefusedByName) {
  const auto weight = [] { return SafetensorsBuilder().add("m.weight", "F8_E4M3", {16, 64}, std::string(1024, '\1')); };
  const json config{{"quant_method", "fp8"}, {"weight_block_size", {8, 32}}};
  EXPECT_THAT(open_error(weight(), config), HasSubstr("tensor 'm.weight' needs 'm.weight_scale', which is missing"));
  SafetensorsBuilder both = weight();
  both.add("m.weight_scale", "F32", {}, std::vector<float>(1)).add("m.weight_scale_inv", "F32", {2, 2}, std::vector<float>(4));
  EXPECT_THAT(open_error(both, config), HasSubstr("has two scales, 'm.weight_scale_inv' and 'm.weight_scale'"));
  SafetensorsBuilder shape = weight();
  shape.add("m.weight_scale_inv", "F32", {2, 3}, std::vector<float>(6));
  EXPECT_THAT(open_error(shape, config),
              HasSubstr("tensor 'm.weight_scale_inv' has type F32 and shape [2, 3], where one, or one for each of 16 "
                        "rows, or [2, 2] is needed"));
  EXPECT_THAT(open_error(shape, {{"quant_method", "fp8"}}), HasSubstr("one for each of 16 rows is needed"));
  SafetensorsBuilder integers = weight();
  integers.add("m.weight_scale", "I32", {}, std::vector<std::int32_t>(1));
  EXPECT_THAT(open_error(integers, config),
              HasSubstr("tensor 'm.weight_scale' has type 'I32' and shape [], where F32, F16 or BF16 is needed"));
}

TEST(QuantisationConfig, UnknownMethodsAndVariantsAreRefusedByName) {
  const auto error = [](const json& config) {
    return error_of([&] { quantisation_from_config(json{{"quantization_config", config}}.dump(), "config.json"); });
  };
  EXPECT_THAT(error({{"quant_method", "bitsandbytes"}}),
              HasSubstr("config.json: quantization_config.quant_method: 'bitsandbytes' is not supported; supported: 'gptq', 'awq', 'fp8'"));
  EXPECT_THAT(error(json::object()), HasSubstr("quant_method: 'of no name' is not supported"));
  json bits = gptq(3, 128, true, false);
  EXPECT_THAT(error(bits), HasSubstr("quantization_config.bits: 3 is not supported; supported: 4, 8"));
  EXPECT_THAT(error(gptq(4, 128, true, false, "marlin")), HasSubstr("checkpoint_format: 'marlin' is not supported"));
  json dynamic = gptq(4, 128, true, false);
  dynamic["dynamic"] = {{"+:.*down.*", {{"bits", 8}}}};
  EXPECT_THAT(error(dynamic), HasSubstr("quantization_config.dynamic"));
  json gemv = awq(128);
  gemv["version"] = "gemv";
  EXPECT_THAT(error(gemv), HasSubstr("version: 'gemv' is not supported; supported: 'gemm'"));
  EXPECT_THAT(error({{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}),
              HasSubstr("format: 'pack-quantized' is not supported; supported: 'float-quantized'"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"weight_block_size", {128}}}), HasSubstr("weight_block_size: a list of two sizes"));
  EXPECT_FALSE(quantisation_from_config("{}", "config.json").has_value());
  EXPECT_FALSE(quantisation_from_config(R"({"quantization_config": null})", "config.json").has_value());
}

}  // namespace
}  // namespace lockstep::engine
