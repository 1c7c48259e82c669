#include "engine/weights/safetensors.h"

#include <nlohmann/json.hpp>

#include "support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string header_error(std::string_view header, std::size_t data_bytes) {
  const TemporaryFolder folder;
  const auto path = folder.write("model.safetensors", safetensors_file(header, data_bytes));
  const std::string error = error_of([&] { read_safetensors(path); });
  EXPECT_THAT(error, HasSubstr("model.safetensors: ")) << "every error names the file";
  return error;
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::vector<float> logits{1.5f, -2.0f, 3.0f, 0.0f, -0.0f, 1e-40f};
  const std::vector<float> scalar{7.0f};
  const std::vector<FloatTensor> tensors{{"logits", {2, 3}, logits}, {"scalar", {}, scalar}, {"empty", {0, 3}, {}}};
  write_safetensors(folder.path() / "dump.safetensors", tensors);
  const auto source = read_safetensors(folder.path() / "dump.safetensors");
  ASSERT_EQ(source->tensors().size(), 3u);
  const StoredTensor& stored = source->require("logits", std::vector<std::size_t>{2, 3});
  EXPECT_EQ(stored.offset % 8, 0u);
  std::vector<float> values(6);
  source->read(stored, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(std::memcmp(values.data(), logits.data(), 24), 0);
  EXPECT_EQ(source->find("scalar")->bytes, 4u);
  EXPECT_EQ(source->find("empty")->bytes, 0u);
}

TEST(Safetensors, WritingNamesThePathAndTheTensor) {
  const std::vector<float> values(5);
  const std::vector<FloatTensor> wrong{{"logits", {2, 3}, values}};
  EXPECT_THAT(error_of([&] { write_safetensors("x", wrong); }), HasSubstr("'logits' of shape [2, 3] has 5 values"));
  EXPECT_THAT(error_of([&] { write_safetensors("/no/such/folder/dump.safetensors", {}); }),
              HasSubstr("/no/such/folder/dump.safetensors: cannot be written"));
}

TEST(Safetensors, ReadsTheThreeTypesOfWeights) {
  for (const auto& [model, type] :
       {std::pair{"llama-gqa", device::DType::kF32}, {"llama-gqa-fp16", device::DType::kF16}, {"llama-gqa-bf16", device::DType::kBF16}}) {
    const auto source = read_safetensors_folder(data_path(std::string("models/") + model));
    const StoredTensor* tensor = source->find("model.layers.2.self_attn.k_proj.weight");
    ASSERT_NE(tensor, nullptr) << model;
    EXPECT_EQ(tensor->dtype, type);
    EXPECT_EQ(tensor->shape, (std::vector<std::size_t>{24, 72}));
  }
}

TEST(Safetensors, AnIndexedModelHoldsTheSameTensorsAsTheSingleFile) {
  const auto single = read_safetensors_folder(data_path("models/llama-gqa"));
  const auto sharded = read_safetensors_folder(data_path("models/llama-gqa-sharded"));
  EXPECT_EQ(sharded->files().size(), 5u);
  ASSERT_EQ(single->tensors().size(), sharded->tensors().size());
  for (const StoredTensor& tensor : single->tensors()) {
    const StoredTensor& other = sharded->require(tensor.name, tensor.shape);
    std::vector<std::byte> expected(tensor.bytes), found(other.bytes);
    single->read(tensor, 0, expected);
    sharded->read(other, 0, found);
    EXPECT_EQ(expected, found) << tensor.name;
  }
}

TEST(Safetensors, AnIndexThatNamesAMissingFileOrTensorIsRefusedByName) {
  const TemporaryFolder folder;
  folder.write("a.safetensors", safetensors_file(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  EXPECT_THAT(error_of([&] { read_safetensors_folder(folder.path()); }), HasSubstr("the file 'b.safetensors' that it names is missing"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})");
  EXPECT_THAT(error_of([&] { read_safetensors_folder(folder.path()); }),
              AllOf(HasSubstr("a.safetensors: tensor 'y' is missing"), HasSubstr("index.json puts there")));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
  EXPECT_EQ(read_safetensors_folder(folder.path())->tensors().size(), 1u);
}

TEST(Safetensors, StrayFilesAndStrayCopiesBesideAnIndexAreNotLookedAt) {
  const TemporaryFolder folder;
  const std::string x = safetensors_file(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  folder.write("a.safetensors", x);
  folder.write(
      "b.safetensors",
      safetensors_file(R"({"x":{"dtype":"F16","shape":[9],"data_offsets":[0,18]},"y":{"dtype":"F32","shape":[1],"data_offsets":[18,22]}})",
                       22));
  folder.write("consolidated.safetensors", x);
  folder.write("broken.safetensors", "no header");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  const auto source = read_safetensors_folder(folder.path());
  EXPECT_EQ(source->files().size(), 2u);
  EXPECT_EQ(source->tensors().size(), 2u);
  EXPECT_EQ(source->find("x")->shape, std::vector<std::size_t>{2}) << "the copy in b.safetensors does not count";
}

TEST(Safetensors, AnIndexMustNotLeadOutOfTheFolder) {
  for (const char* name : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\\\b", "a\\u0000.safetensors"}) {
    const std::string index = std::string(R"({"weight_map":{"x":")") + name + "\"}}";
    EXPECT_THAT(error_of([&] { files_of_index(index, "index"); }), HasSubstr("no file name of this folder")) << name;
  }
  EXPECT_THAT(error_of([] { files_of_index("{}", "index"); }), HasSubstr("index: there is no object 'weight_map'"));
  EXPECT_THAT(error_of([] { files_of_index(R"({"weight_map":{"x":1}})", "index"); }), HasSubstr("the file of tensor 'x' is no string"));
  EXPECT_THAT(error_of([] { files_of_index(R"({"weight_map":{}})", "index"); }), HasSubstr("weight_map is empty"));
}

TEST(Safetensors, AFolderWithoutWeightsIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { read_safetensors_folder(folder.path()); }),
              HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

TEST(Safetensors, RefusesHeadersThatTheFileCannotHold) {
  const TemporaryFolder folder;
  const auto error_for = [&](std::string_view bytes) { return error_of([&] { read_safetensors(folder.write("x.safetensors", bytes)); }); };
  EXPECT_THAT(error_for(""), HasSubstr("it has only 0 bytes"));
  EXPECT_THAT(error_for("1234567"), HasSubstr("it has only 7 bytes"));
  EXPECT_THAT(error_for(Bytes().number(~std::uint64_t{0}).str()), HasSubstr("header is said to have 18446744073709551615 bytes"));
  EXPECT_THAT(error_for(Bytes().number(std::uint64_t{3}).raw("{}").str()), HasSubstr("but the file ends at byte 10"));
}

TEST(Safetensors, RefusesMalformedHeaders) {
  EXPECT_THAT(header_error("[1]", 0), HasSubstr("JSON array, where an object is needed"));
  EXPECT_THAT(header_error("{\"x\":", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{\"x\":" + std::string(100000, '['), 0), HasSubstr("nested deeper than 8 levels"));
  EXPECT_THAT(header_error("{\"x\xff\":1}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(R"({"x":1})", 0), HasSubstr("tensor 'x' is described by a JSON number"));
  EXPECT_THAT(header_error(R"({"x":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("tensor 'x' has no 'dtype'"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("'dtype' that is no string"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), HasSubstr("no whole number"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4), HasSubstr("no whole number"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4),
              HasSubstr("no list of up to 8"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 8), HasSubstr("no list of two"));
}

TEST(Safetensors, RefusesPlacesThatDoNotFitShapeOrFile) {
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8),
              HasSubstr("[2] needs 8 bytes, but its data_offsets give it 4"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
              HasSubstr("only 7 bytes of data are in the file"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), HasSubstr("end before they begin"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 8),
              HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(header_error(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 8),
              HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(
      header_error(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F16","shape":[2],"data_offsets":[6,10]}})", 12),
      HasSubstr("'x' and 'y' share bytes"));
  EXPECT_THAT(
      header_error(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
      HasSubstr("the key 'x' occurs twice"));
}

TEST(Safetensors, OtherTypesAreRefusedOnlyWhenTheyAreNeeded) {
  const TemporaryFolder folder;
  const auto path = folder.write(
      "x.safetensors", safetensors_file(R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                        R"("y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                        8));
  const auto source = read_safetensors(path);
  EXPECT_NE(source->find("y"), nullptr);
  EXPECT_TRUE(source->contains("x"));
  EXPECT_THAT(error_of([&] { source->find("x"); }), AllOf(HasSubstr("x.safetensors: tensor 'x' has type"), HasSubstr("F8_E4M3")));
}

}  // namespace
}  // namespace lockstep::engine
