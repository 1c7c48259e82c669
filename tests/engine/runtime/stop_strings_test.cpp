#include "engine/runtime/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

TEST(StopStrings, EndTheTextBeforeThem) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.append("abc E"), "abc ");
  EXPECT_EQ(stops.append("N"), "");
  EXPECT_FALSE(stops.found());
  EXPECT_EQ(stops.append("D and more"), "");
  EXPECT_TRUE(stops.found());
  EXPECT_EQ(stops.append("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, HoldBackNoMoreThanNeeded) {
  StopStrings stops({"aab"});
  EXPECT_EQ(stops.append("xa"), "x");
  EXPECT_EQ(stops.append("a"), "");
  EXPECT_EQ(stops.append("a"), "a") << "aa may still become aab";
  EXPECT_EQ(stops.append("c"), "aac");
  EXPECT_EQ(stops.append("aa"), "");
  EXPECT_EQ(stops.finish(), "aa");
  EXPECT_FALSE(stops.found());
}

TEST(StopStrings, TheFirstToBeCompleteWinsAndOfTwoTheLonger) {
  StopStrings first({"abc", "b"});
  EXPECT_EQ(first.append("zabc"), "za");
  StopStrings longer({"c", "bc", ""});
  EXPECT_EQ(longer.append("abc"), "a");
}

TEST(StopStrings, WorkOnBytesOfCharacters) {
  StopStrings stops({"é", "終わり"});
  EXPECT_EQ(stops.append("caf"), "caf");
  EXPECT_EQ(stops.append("è"), "è") << "shares its first byte with é";
  EXPECT_EQ(stops.append("終わ"), "");
  EXPECT_EQ(stops.append("る"), "終わる");
  EXPECT_EQ(stops.append("é!"), "");
  EXPECT_TRUE(stops.found());
}

TEST(StopStrings, WithoutAnyAllTextPasses) {
  StopStrings none({});
  EXPECT_EQ(none.append("abc"), "abc");
  EXPECT_EQ(none.finish(), "");
}

/// Whatever the pieces, the result is that of a search in the whole text.
TEST(StopStrings, PiecesDoNotMatter) {
  std::mt19937 random(3);
  const auto random_text = [&](std::size_t length) {
    std::string text(length, 'a');
    for (char& byte : text) byte = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> patterns;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) patterns.push_back(random_text(2 + random() % 6));
    const std::string text = random_text(random() % 30);
    std::string expected = text;
    for (std::size_t end = 1; end <= text.size() && expected == text; ++end) {
      std::size_t longest = 0;
      for (const std::string& pattern : patterns) {
        if (std::string_view(text).substr(0, end).ends_with(pattern)) longest = std::max(longest, pattern.size());
      }
      if (longest > 0) expected = text.substr(0, end - longest);
    }
    StopStrings stops(patterns);
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 4;
      result += stops.append(std::string_view(text).substr(at, length));
      ASSERT_TRUE(expected.starts_with(result)) << "text was handed out that is part of a stop string";
      at += length;
    }
    result += stops.finish();
    ASSERT_EQ(result, expected) << text;
    ASSERT_EQ(stops.found(), expected != text);
  }
}

}  // namespace
}  // namespace lockstep::engine
