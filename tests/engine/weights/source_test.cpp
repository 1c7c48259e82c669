#include "engine/weights/source.h"

#include <thread>

#include <sys/stat.h>

#include "engine/weights/gguf.h"
#include "engine/weights/safetensors.h"
#include "support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A tensor "w" of [6, 8] whose element (r, c) is 10 r + c.
class Numbered {
 public:
  Numbered() {
    std::vector<float> values;
    for (int row = 0; row < 6; ++row) {
      for (int column = 0; column < 8; ++column) values.push_back(static_cast<float>(10 * row + column));
    }
    const std::vector<FloatTensor> tensors{{"w", {6, 8}, values}, {"norm", {8}, std::span(values).first(8)}};
    write_safetensors(folder_.path() / "w.safetensors", tensors);
    source_ = read_safetensors(folder_.path() / "w.safetensors");
  }
  const WeightSource& source() const { return *source_; }
  const StoredTensor& tensor() const { return *source_->find("w"); }
  std::vector<float> rows(std::size_t first_row, std::size_t num_rows, std::size_t first_column, std::size_t num_columns) const {
    std::vector<float> values(num_rows * num_columns);
    source_->read_rows(tensor(), first_row, num_rows, first_column, num_columns, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<WeightSource> source_;
};

TEST(WeightSource, ReadsADenseSliceAndCountsItsBytesOnly) {
  const Numbered numbered;
  EXPECT_EQ(numbered.rows(1, 2, 0, 8), (std::vector<float>{10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27}));
  EXPECT_EQ(numbered.source().bytes_read(), 64u);
  EXPECT_EQ(numbered.rows(4, 2, 3, 2), (std::vector<float>{43, 44, 53, 54}));
  EXPECT_EQ(numbered.source().bytes_read(), 80u);
  EXPECT_EQ(numbered.rows(6, 0, 0, 8), std::vector<float>{});
  EXPECT_EQ(numbered.source().bytes_read(), 80u);
}

TEST(WeightSource, AVectorIsOneRow) {
  const Numbered numbered;
  std::vector<float> values(3);
  const StoredTensor& norm = *numbered.source().find("norm");
  EXPECT_EQ(norm.rows(), 1u);
  numbered.source().read_rows(norm, 0, 1, 5, 3, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{5, 6, 7}));
}

TEST(WeightSource, RefusesASliceOutsideTheTensor) {
  const Numbered numbered;
  EXPECT_THAT(error_of([&] { numbered.rows(5, 2, 0, 8); }),
              AllOf(HasSubstr("w.safetensors: tensor 'w'"), HasSubstr("rows 5 + 2"), HasSubstr("[6, 8]")));
  EXPECT_THAT(error_of([&] { numbered.rows(0, 1, 7, 2); }), HasSubstr("columns 7 + 2"));
  std::vector<std::byte> bytes(8);
  EXPECT_THAT(error_of([&] { numbered.source().read(numbered.tensor(), 185, bytes); }),
              HasSubstr("8 bytes from its byte 185 on are wanted, but it has 192"));
  EXPECT_THAT(error_of([&] { numbered.source().read(numbered.tensor(), ~std::uint64_t{0}, bytes); }), HasSubstr("but it has 192"));
  EXPECT_THAT(error_of([&] { numbered.source().read_rows(numbered.tensor(), 0, 1, 0, 8, bytes); }),
              HasSubstr("the slice has 32 bytes, the room for it 8"));
}

TEST(WeightSource, ColumnsOfBlockTypesAreCutBetweenBlocks) {
  const GgufFile file = read_gguf(data_path("gguf/all_types.gguf"));
  const StoredTensor& tensor = *file.tensors->find("t.Q4_1");
  std::vector<std::byte> whole(tensor.bytes), slice(2 * 3 * 20);
  file.tensors->read(tensor, 0, whole);
  file.tensors->read_rows(tensor, 0, 2, 64, 96, slice);
  EXPECT_TRUE(std::equal(slice.begin(), slice.begin() + 60, whole.begin() + 40));
  EXPECT_TRUE(std::equal(slice.begin() + 60, slice.end(), whole.begin() + 160 + 40));
  EXPECT_THAT(error_of([&] { file.tensors->read_rows(tensor, 0, 1, 16, 32, slice); }), HasSubstr("not whole pieces of 32"));
}

TEST(WeightSource, ASuperBlockCutInsideComesAsAWhole) {
  const GgufFile file = read_gguf(data_path("gguf/all_types.gguf"));
  const StoredTensor& tensor = *file.tensors->find("t.Q4_K");
  ASSERT_GE(tensor.columns(), 512u);
  std::vector<std::byte> whole(tensor.bytes), slice(2 * 2 * 144);
  file.tensors->read(tensor, 0, whole);
  file.tensors->read_rows(tensor, 0, 2, 224, 64, slice);  // the last part of the first super-block, the first of the second
  const std::size_t row = tensor.columns() / 256 * 144;
  EXPECT_TRUE(std::equal(slice.begin(), slice.begin() + 288, whole.begin()));
  EXPECT_TRUE(std::equal(slice.begin() + 288, slice.end(), whole.begin() + static_cast<std::ptrdiff_t>(row)));
  EXPECT_THAT(error_of([&] { file.tensors->read_rows(tensor, 0, 1, 16, 32, slice); }), HasSubstr("not whole pieces of 32"));
}

TEST(WeightSource, RequireNamesWhatIsMissingAndBothShapes) {
  const Numbered numbered;
  EXPECT_EQ(&numbered.source().require("w", std::vector<std::size_t>{6, 8}), &numbered.tensor());
  EXPECT_THAT(error_of([&] {
                numbered.source().require("v", std::vector<std::size_t>{6, 8});
              }),
              HasSubstr("w.safetensors: tensor 'v' is missing"));
  EXPECT_THAT(error_of([&] {
                numbered.source().require("w", std::vector<std::size_t>{8, 6});
              }),
              HasSubstr("has shape [6, 8], but the configuration makes it [8, 6]"));
}

TEST(WeightSource, SeveralThreadsReadAtOnce) {
  const Numbered numbered;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::size_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        if (numbered.rows(i, 1, 2, 1) != std::vector<float>{static_cast<float>(10 * i + 2)}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(numbered.source().bytes_read(), 6u * 200u * 4u);
}

TEST(InputFile, OnlyARegularFileIsOpened) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { InputFile(folder.path() / "none"); }), HasSubstr("none: cannot be opened: No such file or directory"));
  EXPECT_THAT(error_of([&] { InputFile file(folder.path()); }), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { InputFile(folder.path() / "pipe"); }), HasSubstr("is not a regular file"))
      << "and it does not wait for a writer";
}

TEST(InputFile, ASmallFileIsReadOnlyUpToTheGivenSize) {
  const TemporaryFolder folder;
  const auto path = folder.write("text", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  EXPECT_THAT(error_of([&] { read_text_file(path, 4); }), HasSubstr("has 5 bytes; at most 4 are read"));
}

}  // namespace
}  // namespace lockstep::engine
