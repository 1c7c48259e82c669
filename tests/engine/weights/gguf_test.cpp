#include "engine/weights/gguf.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "engine/weights/safetensors.h"
#include "support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

GgufFile parse(const TemporaryFolder& folder, std::string_view bytes) { return read_gguf(folder.write("model.gguf", bytes)); }

std::string parse_error(std::string_view bytes) {
  const TemporaryFolder folder;
  const std::string error = error_of([&] { parse(folder, bytes); });
  EXPECT_THAT(error, HasSubstr("model.gguf: ")) << "every error names the file";
  return error;
}

json metadata_as_json(const GgufMetadata& metadata, const std::string& key) {
  const GgufValue& value = metadata.values().at(key);
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    if (array->element == GgufKind::kString) return *metadata.texts(key);
    if (array->element == GgufKind::kFloat32) return *metadata.numbers(key);
    json list = json::array();
    const bool bools = array->element == GgufKind::kBool;
    const std::vector<std::int64_t> elements = metadata.integers(key).value();
    for (const std::int64_t element : elements) list.push_back(bools ? json(element != 0) : json(element));
    return list;
  }
  switch (value.kind) {
    case GgufKind::kString: return *metadata.text(key);
    case GgufKind::kBool: return metadata.flag(key).value();
    case GgufKind::kFloat32:
    case GgufKind::kFloat64: return metadata.number(key).value();
    case GgufKind::kUint64: return metadata.unsigned_integer(key).value();
    default: return metadata.integer(key).value();
  }
}

TEST(Gguf, ReadsEachKindOfMetadataValue) {
  const GgufFile file = read_gguf(data_path("gguf/all_types.gguf"));
  const json expected = json::parse(file_bytes(data_path("gguf/all_types.json")));
  for (const auto& [key, value] : expected["metadata"].items()) {
    ASSERT_TRUE(file.metadata.contains(key)) << key;
    EXPECT_EQ(metadata_as_json(file.metadata, key), value) << key;
  }
  EXPECT_EQ(file.alignment, expected["alignment"].get<std::uint64_t>());
  EXPECT_EQ(file.data_offset, expected["data_offset"].get<std::uint64_t>());
}

TEST(Gguf, ListsEachTensorWithItsPlaceOrItsUnsupportedType) {
  const GgufFile file = read_gguf(data_path("gguf/all_types.gguf"));
  const json expected = json::parse(file_bytes(data_path("gguf/all_types.json")));
  std::size_t supported = 0;
  for (const auto& [name, tensor] : expected["tensors"].items()) {
    const auto type = tensor["type"].get<std::string>();
    EXPECT_TRUE(file.tensors->contains(name)) << name;
    if (!device::dtype_from_name(type)) {
      EXPECT_THAT(error_of([&, key = name] { file.tensors->find(key); }),
                  AllOf(HasSubstr("all_types.gguf"), HasSubstr(name), HasSubstr("type " + type),
                        HasSubstr("not supported; supported are F32, F16, BF16, Q8_0")));
      continue;
    }
    ++supported;
    const StoredTensor* found = file.tensors->find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(device::info(found->dtype).name, type);
    auto shape = tensor["ne"].get<std::vector<std::size_t>>();
    std::reverse(shape.begin(), shape.end());
    EXPECT_EQ(found->shape, shape) << name;
    EXPECT_EQ(found->offset, file.data_offset + tensor["offset"].get<std::uint64_t>()) << name;
    EXPECT_EQ(found->bytes, tensor["nbytes"].get<std::uint64_t>()) << name;
  }
  EXPECT_EQ(supported, 16u);
  EXPECT_EQ(file.tensors->tensors().size() + file.tensors->unsupported().size(), expected["tensors"].size());
  EXPECT_EQ(file.tensors->find("t.none"), nullptr);
}

std::vector<std::byte> stored_bytes(const WeightSource& source, const StoredTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  source.read(tensor, 0, bytes);
  return bytes;
}

TEST(Gguf, BlocksDecodeToTheReferenceValuesBitByBit) {
  for (const std::string type :
       {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "BF16"}) {
    // The blocks are of type U8, which is not read as a weight: take them from the file by their place.
    const std::string bytes = file_bytes(data_path("gguf/dequant/" + type + ".safetensors"));
    std::uint64_t header_length = 0;
    std::memcpy(&header_length, bytes.data(), sizeof header_length);
    const json header = json::parse(bytes.substr(8, header_length));
    const auto data_of = [&](const char* name) {
      const auto offsets = header[name]["data_offsets"].get<std::vector<std::size_t>>();
      return std::as_bytes(std::span(bytes).subspan(8 + header_length + offsets[0], offsets[1] - offsets[0]));
    };
    const auto expected = data_of("values");
    std::vector<float> values(expected.size() / sizeof(float));
    device::dequantise(*device::dtype_from_name(type), data_of("blocks"), values);
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0) << type;
  }
}

TEST(Gguf, TensorsHoldTheSameBlocksAsTheReference) {
  const GgufFile file = read_gguf(data_path("gguf/all_types.gguf"));
  for (const std::string type :
       {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"}) {
    const StoredTensor& tensor = *file.tensors->find("t." + type);
    const auto stored = stored_bytes(*file.tensors, tensor);
    std::vector<float> values(tensor.rows() * tensor.columns());
    device::dequantise(tensor.dtype, stored, values);
    const auto reference = read_safetensors(data_path("gguf/dequant/" + type + ".safetensors"));
    const auto expected = stored_bytes(*reference, *reference->find("values"));
    ASSERT_EQ(values.size() * sizeof(float), expected.size()) << type;
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0) << type;
  }
}

TEST(Gguf, AFileThatEndsEarlyIsRefusedWhereverItIsCut) {
  const std::string whole = file_bytes(data_path("gguf/gqa288-Q4_0.gguf"));
  const TemporaryFolder folder;
  EXPECT_NO_THROW(parse(folder, whole));
  const std::string last_byte_cut = parse_error(std::string_view(whole).substr(0, whole.size() - 1));
  EXPECT_THAT(last_byte_cut, AllOf(HasSubstr("ends behind the file"), HasSubstr("tensor '"), HasSubstr("cut off")));
  const std::size_t data_offset = read_gguf(data_path("gguf/gqa288-Q4_0.gguf")).data_offset;
  for (std::size_t size = 0; size < data_offset + 64; size += 101)
    EXPECT_NE(parse_error(std::string_view(whole).substr(0, size)), "") << size;
}

TEST(Gguf, AFileCutOffAfterItWasOpenedIsAnErrorThatNamesTensorAndByte) {
  const TemporaryFolder folder;
  const std::string whole = file_bytes(data_path("gguf/all_types.gguf"));
  const GgufFile file = parse(folder, whole);
  const StoredTensor& tensor = *file.tensors->find("t.F32");
  std::filesystem::resize_file(folder.path() / "model.gguf", tensor.offset + 10);
  std::vector<std::byte> bytes(tensor.bytes);
  EXPECT_THAT(
      error_of([&] { file.tensors->read(tensor, 0, bytes); }),
      AllOf(HasSubstr("model.gguf"), HasSubstr("tensor 't.F32', byte " + std::to_string(tensor.offset + 10)), HasSubstr("cut off")));
}

TEST(Gguf, RefusesWhatIsNoLittleEndianGgufOfVersion2Or3) {
  EXPECT_THAT(parse_error("FUGG\0\0\0\3 and more"), HasSubstr("big-endian"));
  EXPECT_THAT(parse_error(std::string_view("GGUF\0\0\0\3 and more", 17)), HasSubstr("big-endian"));
  EXPECT_THAT(parse_error("PK\3\4 and so on"), AllOf(HasSubstr("not a GGUF file"), HasSubstr("'PK\\x03\\x04'")));
  GgufBuilder old;
  old.version = 1;
  EXPECT_THAT(parse_error(old.str()), HasSubstr("version 1 is not supported; supported: 2, 3"));
  EXPECT_THAT(parse_error(""), HasSubstr("the file ends in the magic number"));
}

TEST(Gguf, RefusesCountsAndLengthsThatTheFileCannotHold) {
  const std::uint64_t huge = ~std::uint64_t{0};
  EXPECT_THAT(parse_error(Bytes().raw("GGUF").number(3u).number(huge).number(std::uint64_t{0}).str()),
              HasSubstr("number of tensors is 18446744073709551615"));
  EXPECT_THAT(parse_error(Bytes().raw("GGUF").number(3u).number(std::uint64_t{0}).number(std::uint64_t{60000}).str()),
              HasSubstr("number of metadata values is 60000, more than the 0 bytes behind it"));
  EXPECT_THAT(parse_error(GgufBuilder().value("k", 8, Bytes().number(huge).raw("text").str()).str()),
              HasSubstr("a metadata string is said to have 1844"));
  EXPECT_THAT(parse_error(GgufBuilder().value("k", 9, Bytes().number(8u).number(huge / 8).str()).str()),
              HasSubstr("length of a metadata array"));
  EXPECT_THAT(parse_error(GgufBuilder().value("k", 9, Bytes().number(12u).number(huge / 8 + 2).str()).str()),
              HasSubstr("length of a metadata array"));
}

TEST(Gguf, RefusesMalformedMetadataByKey) {
  EXPECT_THAT(parse_error(GgufBuilder().value("some.key", 13, "12345678").str()), HasSubstr("'some.key' has a value of unknown kind 13"));
  EXPECT_THAT(parse_error(GgufBuilder().value("some.key", 9, Bytes().number(9u).number(std::uint64_t{1}).str()).str()),
              HasSubstr("array of arrays"));
  EXPECT_THAT(parse_error(GgufBuilder().value("some.key", 7, "\2").str()), HasSubstr("'some.key' is a bool of value 2"));
  EXPECT_THAT(parse_error(GgufBuilder().uint32("twice", 1).uint32("twice", 2).str()), HasSubstr("'twice' occurs twice"));
  EXPECT_THAT(parse_error(GgufBuilder().uint32("general.alignment", 24).str()), HasSubstr("'general.alignment' is 24"));
  EXPECT_THAT(parse_error(GgufBuilder().uint32("general.alignment", 0).str()), HasSubstr("'general.alignment' is 0"));
}

TEST(Gguf, GettersNameFileKeyAndTheKindFound) {
  const TemporaryFolder folder;
  const GgufFile file =
      parse(folder, GgufBuilder().string("text", "abc").uint32("number", 7).value("less", 5, Bytes().number(std::int32_t{-4}).str()).str());
  EXPECT_THAT(error_of([&] { file.metadata.unsigned_integer("text"); }),
              AllOf(HasSubstr("model.gguf"), HasSubstr("'text'"), HasSubstr("kind string, where an integer is needed")));
  EXPECT_THAT(error_of([&] { file.metadata.text("number"); }), HasSubstr("'number' is a value of kind uint32, where a string is needed"));
  EXPECT_THAT(error_of([&] { file.metadata.unsigned_integer("less"); }), HasSubstr("'less' is -4, which must not be negative"));
  EXPECT_EQ(file.metadata.integer("less"), -4);
  EXPECT_EQ(file.metadata.unsigned_integer("absent"), std::nullopt);
}

TEST(Gguf, RefusesTensorsThatDoNotFitTheFile) {
  const auto with = [](std::vector<std::uint64_t> ne, std::uint32_t type, std::uint64_t offset) {
    GgufBuilder builder;
    builder.data = std::string(64, '\0');
    return builder.tensor("w", std::move(ne), type, offset).str();
  };
  const TemporaryFolder folder;
  EXPECT_NO_THROW(parse(folder, with({16}, 0, 0)));
  EXPECT_THAT(parse_error(with({17}, 0, 0)), HasSubstr("tensor 'w' of type F32 and shape [17] ends behind the file"));
  EXPECT_THAT(parse_error(with({8}, 0, 64)), HasSubstr("ends behind the file"));
  EXPECT_THAT(parse_error(with({8}, 0, 96)), HasSubstr("begins at offset 96"));
  EXPECT_THAT(parse_error(with({8}, 0, 4)), HasSubstr("no multiple of the alignment"));
  EXPECT_THAT(parse_error(with({8}, 0, ~std::uint64_t{31})), HasSubstr("begins at offset 18446744073709551584"));
  EXPECT_THAT(parse_error(with({std::uint64_t{1} << 62, 16}, 0, 0)), HasSubstr("larger than any file"));
  EXPECT_THAT(parse_error(with({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0)), HasSubstr("larger than any file"));
  EXPECT_THAT(parse_error(with({40}, 8, 0)), HasSubstr("not whole blocks of 32"));
  EXPECT_THAT(parse_error(with({8, 0}, 0, 0)), HasSubstr("axis of length 0"));
  EXPECT_THAT(parse_error(with({1, 1, 1, 1, 1}, 0, 0)), HasSubstr("5 axes"));
}

TEST(Gguf, RefusesTwoTensorsOfOneNameOrOnTheSameBytes) {
  GgufBuilder builder;
  builder.data = std::string(128, '\0');
  EXPECT_THAT(parse_error(GgufBuilder(builder).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).str()), HasSubstr("two tensors 'a'"));
  EXPECT_THAT(parse_error(GgufBuilder(builder).tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).str()),
              HasSubstr("'a' and 'b' share bytes"));
}

TEST(Gguf, ATensorOfAnUnknownTypeIsRefusedOnlyWhenItIsNeeded) {
  const TemporaryFolder folder;
  GgufBuilder builder;
  builder.data = std::string(64, '\0');
  const GgufFile file = parse(folder, builder.tensor("odd", {8}, 99, 0).tensor("plain", {8}, 0, 32).str());
  EXPECT_NE(file.tensors->find("plain"), nullptr);
  EXPECT_THAT(error_of([&] { file.tensors->find("odd"); }), HasSubstr("tensor 'odd' has type type 99, which is not supported;"));
}

}  // namespace
}  // namespace lockstep::engine
