#include <array>

#include "engine/weights/gguf.h"
#include "support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;

GgufBuilder& number16(GgufBuilder& builder, std::string_view key, int value) {
  return builder.value(key, 2, Bytes().number(static_cast<std::uint16_t>(value)).str());
}

/// Part `number` (from 0) of `count` with one tensor [8] of this name, whose elements are all `number`.
GgufBuilder part(int number, int count, std::string_view tensor, int total_tensors) {
  GgufBuilder builder;
  if (number == 0) builder.string("general.architecture", "llama");
  number16(builder, "split.no", number);
  number16(builder, "split.count", count);
  builder.value("split.tensors.count", 5, Bytes().number(std::int32_t{total_tensors}).str());
  for (int i = 0; i < 8; ++i) builder.data += Bytes().number(static_cast<float>(number)).str();
  return builder.tensor(tensor, {8}, 0, 0);
}

constexpr std::array<const char*, 3> kNames{"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};

/// A model in three parts with tensors a, b and c.
class Split {
 public:
  Split() {
    write(0, part(0, 3, "a", 3));
    write(1, part(1, 3, "b", 3));
    write(2, part(2, 3, "c", 3));
  }
  void write(std::size_t at, const GgufBuilder& content) { folder_.write(kNames[at], content.str()); }
  std::filesystem::path path(std::size_t at) const { return folder_.path() / kNames[at]; }
  const TemporaryFolder& folder() const { return folder_; }
  /// Every part, opened by its own name, gives the same refusal.
  std::string error() const {
    const std::string error = error_of([&] { read_gguf(path(0)); });
    for (std::size_t at = 1; at < kNames.size(); ++at) {
      EXPECT_EQ(error_of([&] { read_gguf(path(at)); }), error);
    }
    return error;
  }

 private:
  TemporaryFolder folder_;
};

TEST(SplitGguf, AnyPartOpensTheWholeModel) {
  const Split split;
  std::string hash;
  for (std::size_t at = 0; at < kNames.size(); ++at) {
    const GgufFile file = read_gguf(split.path(at));
    EXPECT_EQ(*file.metadata.text("general.architecture"), "llama") << "the metadata are those of the first part";
    ASSERT_EQ(file.tensors->files().size(), 3u);
    for (const auto& [name, value] : {std::pair("a", 0.0f), {"b", 1.0f}, {"c", 2.0f}}) {
      std::vector<float> values(8);
      file.tensors->read_rows(*file.tensors->find(name), 0, 1, 0, 8, std::as_writable_bytes(std::span(values)));
      EXPECT_EQ(values, std::vector<float>(8, value)) << name;
    }
    if (at == 0) hash = file.header_hash;
    EXPECT_EQ(file.header_hash, hash);
  }
}

TEST(SplitGguf, AMissingPartIsRefusedByName) {
  for (std::size_t at = 0; at < kNames.size(); ++at) {
    const Split split;
    std::filesystem::remove(split.path(at));
    const std::string error = error_of([&] { read_gguf(split.path(at == 0 ? 1 : 0)); });
    EXPECT_THAT(error, AllOf(HasSubstr(kNames[at]), HasSubstr("part " + std::to_string(at + 1) + " of the 3 files"), HasSubstr("missing")));
  }
}

TEST(SplitGguf, ACopyOfAnotherPartIsRefused) {
  Split split;
  split.write(1, part(2, 3, "c", 3));
  EXPECT_THAT(split.error(), AllOf(HasSubstr(kNames[1]), HasSubstr("'split.no' is 2, which makes it part 3"), HasSubstr("part 2 of 3")));
}

TEST(SplitGguf, PartsThatDisagreeAreRefused) {
  Split other_count;
  other_count.write(2, part(2, 4, "c", 3));
  EXPECT_THAT(other_count.error(), AllOf(HasSubstr(kNames[2]), HasSubstr("'split.count' is 4, but the file stands as part 3 of 3")));
  Split other_model;
  other_model.write(1, part(1, 3, "b", 3).string("general.architecture", "qwen2"));
  EXPECT_THAT(other_model.error(),
              AllOf(HasSubstr(kNames[1]), HasSubstr("'general.architecture' differs from that of"), HasSubstr(kNames[0])));
  Split same_tensor;
  same_tensor.write(2, part(2, 3, "a", 3));
  EXPECT_THAT(same_tensor.error(), AllOf(HasSubstr(kNames[2]), HasSubstr("two tensors 'a'")));
  Split no_part;
  no_part.write(1, GgufBuilder().string("general.name", "whole"));
  EXPECT_THAT(no_part.error(), AllOf(HasSubstr(kNames[1]), HasSubstr("'split.count' is 1, but the file stands as part 2 of 3")));
}

TEST(SplitGguf, TheNumberOfTensorsIsThatOfAllPartsTogether) {
  Split split;
  for (int at = 0; at < 3; ++at)
    split.write(static_cast<std::size_t>(at), part(at, 3, std::array{"a", "b", "c"}[static_cast<std::size_t>(at)], 4));
  EXPECT_THAT(split.error(), AllOf(HasSubstr(kNames[0]), HasSubstr("'split.tensors.count' is 4, but the 3 parts have 3 tensors")));
}

TEST(SplitGguf, APartUnderAnotherNameIsRefused) {
  const Split split;
  const auto renamed = split.folder().write("renamed.gguf", part(1, 3, "b", 3).str());
  EXPECT_THAT(error_of([&] { read_gguf(renamed); }),
              AllOf(HasSubstr("renamed.gguf"), HasSubstr("'split.count' is 3: this is a part of a split model"), HasSubstr("its name")));
}

TEST(SplitGguf, ANameThatCountsWrongIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.write("m-00004-of-00003.gguf", part(0, 3, "a", 3).str());
  EXPECT_THAT(error_of([&] { read_gguf(path); }), HasSubstr("there is no part 4 of 3"));
  const auto whole = folder.write("m-00001-of-00001.gguf", GgufBuilder().string("general.architecture", "llama").str());
  EXPECT_EQ(read_gguf(whole).tensors->files().size(), 1u) << "one file that is all parts";
}

TEST(SplitGguf, APartThatEndsEarlyIsRefusedByName) {
  const Split split;
  std::filesystem::resize_file(split.path(2), std::filesystem::file_size(split.path(2)) - 1);
  EXPECT_THAT(split.error(), AllOf(HasSubstr(kNames[2]), HasSubstr("tensor 'c'"), HasSubstr("cut off")));
}

}  // namespace
}  // namespace lockstep::engine
