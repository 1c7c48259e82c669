#include "engine/io/line_reader.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep::engine {
namespace {

struct Read {
  std::uint64_t number;
  std::string text;
  bool too_long;
  bool operator==(const Read&) const = default;
};

class LineReaderTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "lines.jsonl";

  std::vector<Read> read(const std::string& content, std::size_t max_line_bytes = 1000) {
    std::ofstream(path_, std::ios::binary) << content;
    LineReader reader(path_, max_line_bytes);
    std::vector<Read> lines;
    for (InputLine line; reader.next(line);) lines.push_back({line.number, std::string(line.text), line.too_long});
    return lines;
  }
};

TEST_F(LineReaderTest, OnlyLineFeedEndsALine) {
  const std::string separators =
      "a\xe2\x80\xa8"
      "b\xe2\x80\xa9"
      "c\xc2\x85"
      "d\x0b"
      "e\x0c"
      "f\rg";
  EXPECT_EQ(read(separators + "\nnext"), (std::vector<Read>{{1, separators, false}, {2, "next", false}}));
}

TEST_F(LineReaderTest, DropsByteOrderMarkCarriageReturnsAndBlankLinesButNumbersThem) {
  EXPECT_EQ(read("\xef\xbb\xbf"
                 "one\r\n\n \t\r\n\r\ntwo\r\n"),
            (std::vector<Read>{{1, "one", false}, {5, "two", false}}));
  EXPECT_EQ(read("one\n\xef\xbb\xbf"
                 "two"),
            (std::vector<Read>{{1, "one", false},
                               {2,
                                "\xef\xbb\xbf"
                                "two",
                                false}}));
}

TEST_F(LineReaderTest, EmptyFilesHaveNoLines) {
  EXPECT_TRUE(read("").empty());
  EXPECT_TRUE(read("\n\n\n").empty());
  EXPECT_TRUE(read("\xef\xbb\xbf").empty());
}

TEST_F(LineReaderTest, ALineAtTheLimitIsKeptAndOneAboveItIsFlagged) {
  EXPECT_EQ(read("12345\r\n123456\nok\n", 5), (std::vector<Read>{{1, "12345", false}, {2, "", true}, {3, "ok", false}}));
}

TEST_F(LineReaderTest, LinesLongerThanTheBufferAreReadWhole) {
  const std::string long_line(1'000'000, 'x');
  EXPECT_EQ(read(long_line + "\nb", 2'000'000), (std::vector<Read>{{1, long_line, false}, {2, "b", false}}));
}

TEST_F(LineReaderTest, AHugeLineIsSkippedAndItsFingerprintStillTellsContents) {
  const std::string huge(3'000'000, 'x');
  EXPECT_EQ(read(huge + "\nb\n" + huge, 100), (std::vector<Read>{{1, "", true}, {2, "b", false}, {3, "", true}}));

  const auto fingerprint = [&](const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    LineReader reader(path_, 100);
    InputLine line;
    EXPECT_TRUE(reader.next(line));
    return line.fingerprint;
  };
  EXPECT_EQ(fingerprint(huge), fingerprint(huge + "\n"));
  EXPECT_NE(fingerprint(huge), fingerprint(huge.substr(1) + "y"));
}

TEST_F(LineReaderTest, FingerprintsDoNotDependOnTheLineEnd) {
  std::ofstream(path_, std::ios::binary) << "same\r\nsame\nother\nsame";
  LineReader reader(path_, 100);
  std::vector<std::uint64_t> fingerprints;
  for (InputLine line; reader.next(line);) fingerprints.push_back(line.fingerprint);
  ASSERT_EQ(fingerprints.size(), 4u);
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
  EXPECT_NE(fingerprints[0], fingerprints[2]);
  EXPECT_EQ(fingerprints[0], fingerprints[3]);
}

TEST_F(LineReaderTest, AFileThatIsNotThereIsNamed) {
  try {
    LineReader("/nonexistent/requests.jsonl", 10);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "/nonexistent/requests.jsonl: can not be opened: No such file or directory");
  }
  EXPECT_THROW(LineReader(folder_.path(), 10), std::runtime_error);
}

TEST(HashSetTest, TellsFirstFromSecondUse) {
  HashSet set;
  for (std::uint64_t i = 0; i < 10'000; ++i) EXPECT_TRUE(set.insert(mix_bits(i)));
  for (std::uint64_t i = 0; i < 10'000; ++i) EXPECT_FALSE(set.insert(mix_bits(i)));
  EXPECT_TRUE(set.insert(0));
  EXPECT_FALSE(set.insert(0));
  EXPECT_EQ(set.size(), 10'001u);
}

}  // namespace
}  // namespace lockstep::engine
