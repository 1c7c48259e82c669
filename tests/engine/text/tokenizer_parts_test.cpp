// The pieces that the reference's rare options exercise: merging, added tokens, splitting, expressions.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/normalizer.h"
#include "engine/text/splitter.h"
#include "engine/text/utf8.h"

namespace lockstep::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

/// Merges one pair at a time, the best and leftmost first: what byte pair encoding is defined as.
Ids merged_plainly(Ids ids, const std::vector<BytePairEncoder::Merge>& merges) {
  while (true) {
    std::size_t best = merges.size(), place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) best = rank, place = i;
      }
    }
    if (best == merges.size()) return ids;
    ids[place] = merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BytePairEncoder, MergesShortAndLongWordsAsItsDefinitionSays) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::unordered_map<std::string, TokenId> words{{"a", 0}, {"b", 1}, {"c", 2}};
    std::vector<std::string> spellings{"a", "b", "c"};
    std::vector<BytePairEncoder::Merge> merges;
    for (int i = 0; i < 12; ++i) {
      const auto left = static_cast<TokenId>(random() % spellings.size()), right = static_cast<TokenId>(random() % spellings.size());
      const std::string result = spellings[static_cast<std::size_t>(left)] + spellings[static_cast<std::size_t>(right)];
      const auto [word, added] = words.emplace(result, static_cast<TokenId>(spellings.size()));
      if (!added) continue;
      spellings.push_back(result);
      merges.push_back({left, right, word->second});
    }
    const BytePairEncoder encoder(words, merges, {});
    for (const std::size_t length : {1u, 2u, 7u, 47u, 48u, 49u, 300u}) {
      std::string text;
      Ids symbols, ids;
      for (std::size_t i = 0; i < length; ++i) {
        symbols.push_back(static_cast<TokenId>(random() % 3));
        text += static_cast<char>('a' + symbols.back());
      }
      encoder.encode(text, ids);
      EXPECT_EQ(ids, merged_plainly(symbols, merges)) << text;
    }
  }
}

TEST(BytePairEncoder, LetsNeighboursOfALeftOutByteMerge) {
  const BytePairEncoder encoder({{"a", 0}, {"b", 1}, {"ab", 2}}, {{0, 1, 2}}, {});
  Ids ids;
  encoder.encode("a?b", ids);
  EXPECT_THAT(ids, ElementsAre(2));
}

TEST(BytePairEncoder, FusesUnknownSymbolsOnlyWhereToldTo) {
  for (const bool fuse : {false, true}) {
    const BytePairEncoder encoder({{"a", 0}, {"?", 1}}, {}, {.unknown_id = 1, .fuse_unknown = fuse});
    Ids ids;
    encoder.encode("xxaxx", ids);
    EXPECT_EQ(ids, fuse ? (Ids{1, 0, 1}) : (Ids{1, 1, 0, 1, 1}));
  }
}

std::string sections_of(const AddedTokenFinder& finder, std::string_view text, bool parse_special = true) {
  std::vector<Section> sections;
  finder.split(text, parse_special, sections);
  std::string shown;
  for (const Section& section : sections) {
    const std::string piece(text.substr(section.range.begin, section.range.size()));
    shown += section.id < 0 ? "(" + piece + ")" : std::to_string(section.id) + "(" + piece + ")";
  }
  return shown;
}

TEST(AddedTokens, AreFoundLeftmostAndLongestFirst) {
  const AddedTokenFinder finder({{.id = 1, .content = "<a>"}, {.id = 2, .content = "<a><b>"}, {.id = 3, .content = "b>x"}});
  EXPECT_EQ(sections_of(finder, "x<a><b>x<a>b>x"), "(x)2(<a><b>)(x)1(<a>)3(b>x)");
}

TEST(AddedTokens, TakeWhiteSpaceAlongAndKeepOffWords) {
  const AddedTokenFinder finder({{.id = 1, .content = "<l>", .strip_left = true},
                                 {.id = 2, .content = "<r>", .strip_right = true},
                                 {.id = 3, .content = "the", .single_word = true}});
  EXPECT_EQ(sections_of(finder, "a \xE3\x80\x80<l> b <r>\n c"), "(a)1( \xE3\x80\x80<l>)( b )2(<r>\n )(c)");
  EXPECT_EQ(sections_of(finder, "the other the, \xC3\xA9the"), "3(the)( other )3(the)(, \xC3\xA9the)");
}

TEST(AddedTokens, ThatAreSpecialAreTextWhereSpecialsAreNotParsed) {
  const AddedTokenFinder finder({{.id = 1, .content = "<s>", .special = true}, {.id = 2, .content = "<u>"}});
  EXPECT_EQ(sections_of(finder, "<s><u>", true), "1(<s>)2(<u>)");
  EXPECT_EQ(sections_of(finder, "<s><u>", false), "(<s>)2(<u>)");
}

std::vector<std::string> words_of(Splitter::Step step, std::string_view text) {
  std::vector<Splitter::Step> steps;
  steps.push_back(std::move(step));
  const Splitter splitter(std::move(steps));
  Splitter::Scratch scratch;
  splitter.split(text, scratch);
  return {scratch.words.begin(), scratch.words.end()};
}

TEST(Splitter, TreatsMatchesAsEachBehaviourSays) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    return words_of({.expression = Expression("-"), .behavior = behavior, .invert = invert}, "the-final--countdown");
  };
  EXPECT_THAT(split(SplitBehavior::Removed), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(SplitBehavior::Isolated), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::Contiguous), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(split(SplitBehavior::MergedWithPrevious), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::MergedWithNext), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split(SplitBehavior::Removed, true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(split(SplitBehavior::MergedWithPrevious, true), ElementsAre("the", "-final", "-", "-countdown"));
}

TEST(Splitter, PutsASpaceInFrontOfPiecesThatHaveNone) {
  const auto with_space = [](std::string_view text) { return words_of({.expression = Expression(kGpt2Split), .prefix = " "}, text); };
  EXPECT_THAT(with_space("a b"), ElementsAre(" a", " b"));
  EXPECT_THAT(with_space(" a"), ElementsAre(" a"));
}

TEST(Splitter, LeavesTheLastOfSeveralSpacesToTheWord) {
  EXPECT_THAT(words_of({.expression = Expression(kGpt2Split)}, "a   b\n\n c  "), ElementsAre("a", "  ", " b", "\n\n", " c", "  "));
}

std::vector<std::string> matches_of(const Expression& expression, const std::string& text) {
  Expression::Scratch scratch;
  std::vector<Range> matches;
  expression.find_all(text, scratch, matches);
  std::vector<std::string> result;
  for (const Range match : matches) result.push_back(text.substr(match.begin, match.size()));
  return result;
}

TEST(Expression, HasTheReferencesIdeaOfWhiteSpaceAndWords) {
  EXPECT_THAT(matches_of(Expression("\\s"), "\xC2\x85\xE1\xA0\x8E\xE2\x80\xA8"), ElementsAre("\xC2\x85", "\xE2\x80\xA8"))
      << "U+180E is none";
  EXPECT_THAT(matches_of(Expression("[^\\s]"), "\xE1\xA0\x8E "), ElementsAre("\xE1\xA0\x8E"));
  EXPECT_THAT(matches_of(Expression("\\S"), "\xE1\xA0\x8E "), ElementsAre("\xE1\xA0\x8E"));
  EXPECT_THAT(matches_of(Expression("\\w+"), "e\xCC\x81_\xE2\x80\xBF!"), ElementsAre("e\xCC\x81_\xE2\x80\xBF"));
  EXPECT_THAT(matches_of(Expression("(?i:'s)"), "'S'\xC5\xBF"), ElementsAre("'S", "'\xC5\xBF"));
}

TEST(Expression, MatchesLiteralsAsTheyStand) {
  EXPECT_THAT(matches_of(Expression::literal("a.\\E*"), "a.\\E* abcE"), ElementsAre("a.\\E*"));
}

TEST(Expression, EmptyMatchesMoveOnByACharacter) { EXPECT_THAT(matches_of(Expression("x*"), "\xC3\xA9xx"), ElementsAre("", "xx")); }

TEST(Expression, GivesUpOnExplodingMatches) {
  try {
    matches_of(Expression("^(a|aa)+$"), std::string(64, 'a') + "!");
    FAIL() << "matched";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("match limit exceeded"));
  }
}

std::string found_by(const char* pattern, const std::string& text) {
  std::string found;
  for (const std::string& match : matches_of(Expression(pattern), text)) found += match;
  return found;
}

TEST(Expression, ReadsAClassInAClassAsItsMembers) {
  EXPECT_EQ(found_by("[^(\\s|[.,!?])]", "(a b|c.d,e]f)g"), "abcde]fg");
  EXPECT_EQ(found_by("[a[-c]]", "a-bc"), "a-c");
  EXPECT_EQ(found_by("[a[b-]d]", "ab-cd"), "ab-d");
  EXPECT_EQ(found_by("[a-[c]]", "a-bc"), "a-c");
  EXPECT_EQ(found_by("[x[]y]]", "x]yz"), "x]y");
  EXPECT_EQ(found_by("[[:digit:]x]", "1x:]d"), "1x");
}

TEST(Expression, RefusesWhatItCannotRead) {
  for (const char* pattern : {"(", "[a", "a{2,1}", "[a&&b]", "[a[^b]]", "[a[b]", "\\C"})
    EXPECT_THROW(Expression{pattern}, std::runtime_error) << pattern;
  EXPECT_THROW(Expression(std::string(70000, 'a')), std::runtime_error);
  EXPECT_THROW(Expression(std::string(200, '(') + std::string(200, ')')), std::runtime_error);
}

std::string normalized(Normalizer::Step step, std::string text) {
  std::vector<Normalizer::Step> steps;
  steps.push_back(std::move(step));
  Expression::Scratch scratch;
  return Normalizer(std::move(steps)).apply(std::move(text), scratch);
}

TEST(Normalizer, DoesEachStep) {
  EXPECT_EQ(normalized(UnicodeForm::Nfc, "e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(normalized(UnicodeForm::Nfd, "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(normalized(UnicodeForm::Nfkc, "\xEF\xAC\x81"), "fi");
  EXPECT_EQ(normalized(UnicodeForm::Nfc, "\xEF\xAC\x81"), "\xEF\xAC\x81");
  EXPECT_EQ(normalized(Normalizer::Letters::Lowercase, "\xC3\x89X\xC4\xB0"), "\xC3\xA9xi\xCC\x87");
  EXPECT_EQ(normalized(Normalizer::Prepend{"_"}, "x"), "_x");
  EXPECT_EQ(normalized(Normalizer::Prepend{"_"}, ""), "");
  EXPECT_EQ(normalized(Normalizer::Replace{Expression("\\s+"), "~"}, "a \n b"), "a~b");
}

TEST(ByteAlphabet, SpellsEveryByteOnce) {
  const ByteAlphabet alphabet;
  EXPECT_EQ(alphabet.to_bytes("\xC4\xA0the\xC4\x8A"), " the\n");
  EXPECT_EQ(alphabet.to_bytes("a b"), std::nullopt);
  EXPECT_EQ(alphabet.to_bytes("\xE4\xB8\xAD"), std::nullopt);
  EXPECT_EQ(alphabet.to_bytes("\xFF"), std::nullopt);
  std::string seen(256, '\0');
  for (char32_t code_point = 0; code_point < 400; ++code_point) {
    std::string spelling;
    append_utf8(spelling, code_point);
    if (const auto bytes = alphabet.to_bytes(spelling)) ++seen[static_cast<unsigned char>((*bytes)[0])];
  }
  EXPECT_EQ(seen, std::string(256, '\1'));
}

TEST(Utf8, ReplacesEachHopelessSequenceOnce) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98z\xC0\x80\xE0\x80"), r + "z" + r + r + r + r);
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98z", Replacement::PerByte), r + r + r + "z");
  std::string text;
  EXPECT_EQ(append_certain_text(text, "ab\xF0\x9F"), 2u);
  EXPECT_EQ(text, "ab");
}

}  // namespace
}  // namespace lockstep::text
