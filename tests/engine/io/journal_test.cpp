#include "engine/io/journal.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/io/usage_error.h"
#include "tests/engine/io/fakes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::engine {
namespace {

class JournalTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "out.partial";
  const std::filesystem::path output_ = folder_.path() / "out";
  const std::filesystem::path errors_ = folder_.path() / "errors";

  static AnswerKey key(std::uint64_t number) { return {number, mix_bits(number)}; }
  static Answer good(std::uint64_t number) {
    Answer answer =
        refused_answer(key(number), "id-" + std::to_string(number), RequestError(200, "fine", "", "text " + std::string(number * 3, 'x')));
    answer.ok = true;
    return answer;
  }
  static Answer bad(std::uint64_t number) { return refused_answer(key(number), "id", RequestError(400, "bad", "", "message")); }
};

TEST_F(JournalTest, RecoversTheWholeLinesOfAFileCutAtAnyByte) {
  const std::vector<std::uint64_t> order = {3, 1, 9, 2};
  {
    Journal journal(path_, read_batch_answer);
    for (const std::uint64_t number : order) journal.append(key(number), number == 9 ? bad(number) : good(number));
  }
  const std::string content = read_file(path_);
  for (std::size_t length = 0; length <= content.size(); ++length) {
    std::filesystem::remove(path_);  // much quicker than to truncate it
    write_file(path_, content.substr(0, length));
    const auto whole = static_cast<std::size_t>(std::count(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(length), '\n'));
    std::vector<std::uint64_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(whole));
    std::sort(expected.begin(), expected.end());

    Journal journal(path_, read_batch_answer);
    std::vector<std::uint64_t> found;
    for (const AnswerKey& answered : journal.recover(false)) {
      found.push_back(answered.line_number);
      EXPECT_EQ(answered, key(answered.line_number));
    }
    ASSERT_EQ(found, expected) << "cut at " << length;
    journal.append(key(50), good(50));
    ASSERT_EQ(split_lines(read_file(path_)).size(), whole + 1);
    ASSERT_EQ(split_lines(read_file(path_)).back(), good(50).line);
  }
}

TEST_F(JournalTest, LinesThatAreNoAnswersAndSecondAnswersAreDropped) {
  write_file(path_, "garbage\n" + good(1).line + "\n" + good(2).line.substr(0, 50) + "\n\n" + good(1).line + "\n" + good(3).line + "\n" +
                        std::string(100, '\0'));
  Journal journal(path_, read_batch_answer);
  EXPECT_EQ(journal.recover(false), (std::vector<AnswerKey>{key(1), key(3)}));
  EXPECT_EQ(read_file(path_), good(1).line + "\n" + good(3).line + "\n");
  journal.append(key(2), good(2));
  journal.finish(output_, std::nullopt, true);
  EXPECT_EQ(read_file(output_), good(1).line + "\n" + good(2).line + "\n" + good(3).line + "\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(JournalTest, FailuresAreDroppedOnRequest) {
  write_file(path_, good(1).line + "\n" + bad(2).line + "\n" + good(3).line + "\n" + bad(4).line + "\n");
  Journal journal(path_, read_batch_answer);
  EXPECT_EQ(journal.recover(true), (std::vector<AnswerKey>{key(1), key(3)}));
  EXPECT_EQ(journal.num_failed(), 0u);
  EXPECT_EQ(read_file(path_), good(1).line + "\n" + good(3).line + "\n");
}

TEST_F(JournalTest, KeepsItsLockWhenTheFileIsReplaced) {
  write_file(path_, bad(2).line + "\n" + good(3).line + "\n");
  Journal journal(path_, read_batch_answer);
  EXPECT_THROW((Journal{path_, read_batch_answer}), UsageError);
  journal.recover(true);
  EXPECT_THROW((Journal{path_, read_batch_answer}), UsageError);
}

TEST_F(JournalTest, SortsAndSeparates) {
  Journal journal(path_, read_batch_answer);
  for (const std::uint64_t number : {5, 2, 4, 1, 3}) journal.append(key(number), number % 2 == 0 ? bad(number) : good(number));
  EXPECT_EQ(journal.num_answered(), 3u);
  EXPECT_EQ(journal.num_failed(), 2u);
  journal.finish(output_, errors_, true);
  EXPECT_EQ(read_file(output_), good(1).line + "\n" + good(3).line + "\n" + good(5).line + "\n");
  EXPECT_EQ(read_file(errors_), bad(2).line + "\n" + bad(4).line + "\n");
}

TEST_F(JournalTest, InCompletionOrderTheJournalIsTheOutput) {
  Journal journal(path_, read_batch_answer);
  for (const std::uint64_t number : {5, 2, 4}) journal.append(key(number), good(number));
  journal.finish(output_, std::nullopt, false);
  EXPECT_EQ(read_file(output_), good(5).line + "\n" + good(2).line + "\n" + good(4).line + "\n");
}

TEST_F(JournalTest, FinishingCanBeTriedAgain) {
  Journal journal(path_, read_batch_answer);
  journal.append(key(1), good(1));
  EXPECT_THROW(journal.finish(folder_.path() / "nowhere" / "out", std::nullopt, true), std::runtime_error);
  journal.finish(output_, std::nullopt, true);
  EXPECT_EQ(read_file(output_), good(1).line + "\n");
}

TEST_F(JournalTest, AnswersLongerThanTheBuffersPassWhole) {
  std::string expected;
  {
    Journal journal(path_, read_batch_answer);
    for (std::uint64_t number = 1; number <= 3; ++number) {
      Answer answer =
          refused_answer(key(number), "id", RequestError(400, "x", "", std::string(3'000'000, static_cast<char>('a' + number))));
      expected += answer.line + "\n";
      journal.append(key(number), answer);
    }
  }
  Journal journal(path_, read_batch_answer);
  EXPECT_EQ(journal.recover(false).size(), 3u);
  journal.finish(output_, std::nullopt, true);
  EXPECT_EQ(read_file(output_), expected);
}

TEST_F(JournalTest, CountsTheAnswersOfAFile) {
  write_file(output_, good(1).line + "\n" + bad(2).line + "\n" + good(3).line + "\n");
  EXPECT_EQ(count_answers(output_, read_batch_answer).ok, 2u);
  EXPECT_EQ(count_answers(output_, read_batch_answer).failed, 1u);
  write_file(output_, good(1).line + "\nsomething else\n");
  EXPECT_THROW(count_answers(output_, read_batch_answer), UsageError);
}

}  // namespace
}  // namespace lockstep::engine
