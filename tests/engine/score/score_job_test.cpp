// Score files from their lines to their answers, and how text becomes a context and a continuation.
#include "engine/score/score_job.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/score/score_request.h"
#include "engine/score/token_pair.h"
#include "tests/engine/io/fakes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TokenId> ids(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 3);
  return ids;
}

std::vector<TokenId> after(TokenId first, std::string_view text) {
  std::vector<TokenId> all = ids(text);
  all.insert(all.begin(), first);
  return all;
}

/// Puts EOS behind a text too, as some vocabularies do.
class ClosingTokenizer : public FakeTokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special) const override {
    std::vector<TokenId> ids = FakeTokenizer::encode(text, add_special, parse_special);
    if (add_special) ids.push_back(1);
    return ids;
  }
};

TEST(TokenPair, WhiteSpaceAtTheEndOfTheContextBelongsToTheContinuation) {
  const auto moved = [](std::string_view context, std::string_view continuation) {
    const auto [head, tail] = move_white_space(context, continuation);
    return head + "|" + tail;
  };
  EXPECT_EQ(moved("The cat", " sat"), "The cat| sat");
  EXPECT_EQ(moved("The cat ", "sat"), "The cat| sat");
  EXPECT_EQ(moved(" a \t\r\n", "b"), " a| \t\r\nb");
  EXPECT_EQ(moved("  ", "b"), "|  b");
  EXPECT_EQ(moved("", ""), "|");
  EXPECT_EQ(moved("x\xc2\xa0\xe3\x80\x80", "b"),
            "x|\xc2\xa0\xe3\x80\x80"
            "b");
  EXPECT_EQ(moved("\xc3\xa0", "b"), "\xc3\xa0|b") << "its last byte is that of a no-break space";
}

TEST(TokenPair, IsTheWholeStringCutWhereTheContextAloneEnds) {
  const FakeTokenizer tokenizer;
  const TokenPair pair = pair_tokens(tokenizer, "ab ", "cd", true);
  EXPECT_EQ(pair.tokens, after(0, "ab cd"));
  EXPECT_EQ(pair.first_scored, 3u);
  const TokenPair bare = pair_tokens(tokenizer, "ab", "cd", false);
  EXPECT_EQ(bare.tokens, ids("abcd"));
  EXPECT_EQ(bare.first_scored, 2u);
}

TEST(TokenPair, AnEmptyContextIsThePrefixToken) {
  const TokenPair pair = pair_tokens(FakeTokenizer(false), " ", "cd", true);
  EXPECT_EQ(pair.tokens, after(0, " cd"));
  EXPECT_EQ(pair.first_scored, 1u);
  EXPECT_EQ(pair_tokens(FakeTokenizer(false), "", "<s>cd", true).tokens, after(0, "cd")) << "not twice";
  EXPECT_THROW(pair_tokens(FakeTokenizer(), "", "", true), RequestError);
  EXPECT_THROW(pair_tokens(FakeTokenizer(), "a", "", true), RequestError);
}

TEST(TokenPair, AnEosThatTheTokenizerAddsIsNoPartOfTheText) {
  const ClosingTokenizer tokenizer;
  EXPECT_EQ(encode_open(tokenizer, "ab", true), after(0, "ab"));
  EXPECT_EQ(pair_tokens(tokenizer, "ab", "cd", true).first_scored, 3u);
}

class ScoreJobTest : public testing::Test {
 protected:
  ScoreOptions options(const std::string& input) {
    ScoreOptions options;
    options.input_file = folder_.write("in.jsonl", input);
    options.output_file = folder_.path() / "out.jsonl";
    return options;
  }
  std::vector<json> output() const {
    std::vector<json> lines;
    std::ifstream file(folder_.path() / "out.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::string bytes() const {
    std::ostringstream text;
    text << std::ifstream(folder_.path() / "out.jsonl").rdbuf();
    return text.str();
  }
  std::vector<json> run(const std::string& input, std::uint32_t order = 1) {
    ScoreOptions given = options(input);
    given.overwrite = true;
    FakeEngine engine(order);
    result_ = run_score(given, engine, &tokenizer_);
    EXPECT_FALSE(fs::exists(folder_.path() / "out.jsonl.partial"));
    return output();
  }
  std::string code_of(const std::string& line) {
    const std::vector<json> lines = run(line + "\n");
    EXPECT_EQ(lines.size(), 1u);
    return lines.at(0).contains("error") ? lines[0]["error"]["code"].get<std::string>() + " " + lines[0]["error"]["param"].dump()
                                         : "(accepted)";
  }

  test::TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
  ScoreResult result_;
};

TEST_F(ScoreJobTest, AnswersPairsAndTexts) {
  const std::vector<json> lines = run(R"({"context": "ab ", "continuation": "cd"}
{"id": 7, "context": "ab", "continuation": "cd", "metadata": {"task": "t", "doc": 3}, "token_logprobs": true}
{"id": "r", "text": "xyz"}
{"context": [5, 6], "continuation": [7]}
)");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(result_.answered, 4u);
  EXPECT_EQ(result_.failed, 0u);
  const auto score = [](TokenId token, std::size_t at) { return -(token / 8.0 + static_cast<double>(at) / 16.0); };
  EXPECT_EQ(lines[0]["id"], "line-1");
  EXPECT_EQ(lines[0]["loglikelihood"], score(' ' + 3, 3) + score('c' + 3, 4) + score('d' + 3, 5));
  EXPECT_EQ(lines[0]["is_greedy"], false);  // the space is none of the letters
  EXPECT_EQ(lines[0]["num_tokens"], 3);
  EXPECT_FALSE(lines[0].contains("metadata"));
  EXPECT_EQ(lines[1]["id"], 7);
  EXPECT_EQ(lines[1]["is_greedy"], true);
  EXPECT_EQ(lines[1]["metadata"]["doc"], 3);
  EXPECT_EQ(lines[1]["tokens"], json({'c' + 3, 'd' + 3}));
  EXPECT_EQ(lines[1]["token_logprobs"], json({score('c' + 3, 3), score('d' + 3, 4)}));
  EXPECT_EQ(lines[2]["id"], "r");
  EXPECT_EQ(lines[2]["loglikelihood"], score('x' + 3, 1) + score('y' + 3, 2) + score('z' + 3, 3));
  EXPECT_EQ(lines[2]["num_bytes"], 3);
  EXPECT_FALSE(lines[2].contains("is_greedy"));
  EXPECT_EQ(lines[3]["loglikelihood"], score(7, 2));
}

TEST_F(ScoreJobTest, TheOrderIsThatOfTheInputWhateverTheEngineDoes) {
  std::string input;
  for (int i = 0; i < 300; ++i) {
    input += i % 7 == 3 ? "{\"bad\": " + std::to_string(i) + "}\n"
                        : R"({"context": ")" + std::string(static_cast<std::size_t>(i % 20), 'a') +
                              R"(", "continuation": "bc"})"
                              "\n";
  }
  run(input, 1);
  const std::string first = bytes();
  run(input, 2);
  EXPECT_EQ(first, bytes());
  EXPECT_EQ(result_.failed, 43u);
  EXPECT_EQ(result_.answered, 257u);
}

TEST_F(ScoreJobTest, ALongTextIsRolledInWindowsOfTheContext) {
  const std::string text(150, 'q');
  const std::vector<json> lines = run(R"({"text": ")" + text + "\"}\n");
  EXPECT_EQ(lines.at(0)["num_tokens"], 150);
  EXPECT_EQ(lines.at(0)["num_bytes"], 150);
}

TEST_F(ScoreJobTest, AContextThatIsTooLongLosesItsFrontAndSaysSo) {
  const std::vector<json> lines = run(R"({"context": ")" + std::string(100, 'a') +
                                      R"(", "continuation": "bc"})"
                                      "\n" +
                                      R"({"context": "a", "continuation": ")" + std::string(65, 'a') +
                                      R"("})"
                                      "\n" +
                                      R"({"context": "a", "continuation": ")" + std::string(64, 'a') +
                                      R"("})"
                                      "\n");
  EXPECT_EQ(lines.at(0)["num_cut"], 103 - 65);
  EXPECT_EQ(lines.at(0)["num_tokens"], 2);
  EXPECT_EQ(lines.at(1)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(lines.at(2)["num_tokens"], 64);
}

TEST_F(ScoreJobTest, ABadLineIsAnErrorRecordAndCostsNothingElse) {
  const std::vector<json> lines =
      run("[1]\n\nnull\n{\"context\": \"a\"\n{\"context\": \"a\", \"continuation\": \"b\"}\n{\"id\": \"x\", \"text\": 5}\n");
  ASSERT_EQ(lines.size(), 5u);
  for (const std::size_t bad : {0u, 1u, 2u, 4u}) EXPECT_TRUE(lines[bad].contains("error")) << bad;
  EXPECT_EQ(lines[1]["id"], "line-3");
  EXPECT_TRUE(lines[3].contains("loglikelihood"));
  EXPECT_EQ(lines[4]["id"], "x");
  EXPECT_EQ(result_.failed, 4u);
}

TEST_F(ScoreJobTest, WhatTheEngineOrTheTokenizerCanNotDoCostsItsLineAlone) {
  class FailingTokenizer : public FakeTokenizer {
    std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special) const override {
      if (text.find('#') != std::string_view::npos) throw std::runtime_error("an expression took too many steps");
      return FakeTokenizer::encode(text, add_special, parse_special);
    }
  };
  const FailingTokenizer tokenizer;
  FakeEngine engine;
  engine.limits_.vocab_size = 150;
  result_ = run_score(options("{\"text\": \"a\"}\n{\"text\": \"\xc3\xa9\"}\n{\"text\": \"#\"}\n{\"text\": \"b\"}\n"), engine, &tokenizer);
  const std::vector<json> lines = output();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(result_.failed, 2u);
  EXPECT_EQ(lines[1]["error"]["code"], "invalid_request");
  EXPECT_EQ(lines[1]["error"]["message"], "token 198 of the prompt");
  EXPECT_EQ(lines[2]["error"]["code"], "internal_error");
  EXPECT_EQ(lines[2]["error"]["message"], "an expression took too many steps");
  for (const std::size_t good : {0u, 3u}) EXPECT_TRUE(lines[good].contains("loglikelihood"));
}

TEST_F(ScoreJobTest, EachFaultHasItsName) {
  EXPECT_EQ(code_of(R"({"context": "a"})"), "missing_parameter \"continuation\"");
  EXPECT_EQ(code_of(R"({"continuation": "a"})"), "missing_parameter \"context\"");
  EXPECT_EQ(code_of(R"({"context": "a", "continuation": ""})"), "empty_continuation \"continuation\"");
  EXPECT_EQ(code_of(R"({"context": [4], "continuation": []})"), "invalid_value \"continuation\"");
  EXPECT_EQ(code_of(R"({"context": [4], "continuation": [261]})"), "invalid_value \"continuation[0]\"");
  EXPECT_EQ(code_of(R"({"context": [4], "continuation": "a"})"), "invalid_value \"context\"");
  EXPECT_EQ(code_of(R"({"context": "a", "continuation": "b", "text": "c"})"), "invalid_value \"text\"");
  EXPECT_EQ(code_of(R"({"text": ""})"), "empty_text \"text\"");
  EXPECT_EQ(code_of(R"({"text": "a", "colour": 1})"), "unsupported_parameter \"colour\"");
  EXPECT_EQ(code_of(R"({"text": "a", "id": []})"), "invalid_value \"id\"");
  EXPECT_EQ(code_of(R"({"text": "a", "token_logprobs": 1})"), "invalid_value \"token_logprobs\"");
  EXPECT_EQ(code_of(R"({"text": "a", "id": null, "context": null})"), "(accepted)");
  EXPECT_EQ(code_of(R"({"context": [], "continuation": [4]})"), "(accepted)");
  EXPECT_EQ(code_of(R"({"context": "a", "continuation": "b!"})"), "scoring_failed null") << "the fake model fails at '!'";
}

TEST_F(ScoreJobTest, WithoutATokenizerOnlyTokenIdsAreAnswered) {
  FakeEngine engine;
  run_score(options("{\"text\": \"a\"}\n{\"context\": [4], \"continuation\": [5]}\n{\"text\": [4, 5]}\n"), engine, nullptr);
  const std::vector<json> lines = output();
  EXPECT_EQ(lines.at(0)["error"]["code"], "no_tokenizer");
  EXPECT_EQ(lines.at(1)["num_tokens"], 1);
  EXPECT_EQ(lines.at(2)["error"]["code"], "empty_context");
}

TEST_F(ScoreJobTest, AnOutputThatExistsIsLeftAlone) {
  folder_.write("out.jsonl", "precious");
  FakeEngine engine;
  EXPECT_THROW(run_score(options("{\"text\": \"a\"}\n"), engine, &tokenizer_), UsageError);
  EXPECT_EQ(bytes(), "precious");
  ScoreOptions same = options("{\"text\": \"a\"}\n");
  same.output_file = same.input_file;
  same.overwrite = true;
  EXPECT_THROW(check_job_files(same), UsageError);
  ScoreOptions missing = options("");
  missing.input_file = folder_.path() / "nowhere";
  EXPECT_THROW(check_job_files(missing), UsageError);
}

/// Thirty requests, every fifth of them bad.
std::string thirty_lines() {
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += i % 5 == 4 ? "{\"context\": 1}\n" : "{\"id\": " + std::to_string(i) + ", \"text\": \"text " + std::to_string(i * 7) + "\"}\n\n";
  return text;
}

class ScoreResumeTest : public ScoreJobTest {
 protected:
  ScoreResumeTest() : options_(options(thirty_lines())), partial_(folder_.path() / "out.jsonl.partial") {
    options_.max_in_flight = 4;
    options_.settings = {{"dtype", "float32"}};
    options_.model_hash = "abc";
    run_to_end();
    expected_ = bytes();
    options_.overwrite = true;
  }
  ScoreResult run_to_end(std::uint32_t order = 1) {
    FakeEngine engine(order);
    return run_score(options_, engine, &tokenizer_);
  }
  /// A job that fails after some steps.
  void fail_after(int steps) {
    FakeEngine engine(3);
    engine.steps_before_failure = steps;
    EXPECT_THROW(run_score(options_, engine, &tokenizer_), std::runtime_error);
    EXPECT_FALSE(fs::exists(options_.output_file));
    options_.overwrite = false;
    options_.resume = true;
  }
  std::uint64_t num_written() const {
    const std::string text = read_file(partial_);
    return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  }
  void expect_goes_on_behind(std::uint64_t num_done) {
    const ScoreResult result = run_to_end(5);
    EXPECT_EQ(result.resumed, num_done);
    EXPECT_EQ(result.answered, 24u);
    EXPECT_EQ(result.failed, 6u);
    EXPECT_EQ(bytes(), expected_);
    EXPECT_FALSE(fs::exists(partial_));
  }
  std::string refusal() {
    try {
      run_to_end();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "(none)";
  }

  ScoreOptions options_;
  fs::path partial_;
  std::string expected_;
};

TEST_F(ScoreResumeTest, AJobThatFailedGoesOnToTheSameBytes) {
  std::uint64_t most = 0;
  for (const int steps : {0, 1, 3, 8}) {
    options_.overwrite = true;
    options_.resume = false;
    fail_after(steps);
    const std::uint64_t num_done = num_written();
    most = std::max(most, num_done);
    expect_goes_on_behind(num_done);
  }
  EXPECT_GT(most, 4u);
}

TEST_F(ScoreResumeTest, AJobThatWasStoppedGoesOnToTheSameBytes) {
  std::atomic<bool> stop{false};
  FakeEngine engine(2);
  const ScoreHooks hooks{.progress = [&](std::uint64_t done, std::uint64_t) { stop = done >= 10; }, .stop = &stop};
  const ScoreResult stopped = run_score(options_, engine, &tokenizer_, hooks);
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_FALSE(fs::exists(options_.output_file));
  EXPECT_GE(num_written(), 10u);
  EXPECT_EQ(stopped.answered + stopped.failed, num_written());
  options_.overwrite = false;
  options_.resume = true;
  expect_goes_on_behind(num_written());
}

TEST_F(ScoreResumeTest, AJournalThatWasCutOrDamagedGivesTheSameOutput) {
  fail_after(8);
  const std::string journal = read_file(partial_);
  const std::string record = read_file(folder_.path() / "out.jsonl.run.json");
  const auto put = [&](const std::string& text) {
    fs::remove(options_.output_file);
    write_file(partial_, text);
    write_file(folder_.path() / "out.jsonl.run.json", record);
  };
  for (std::size_t size = 1; size <= journal.size(); size += 17) {
    put(journal.substr(0, size));
    expect_goes_on_behind(
        static_cast<std::uint64_t>(std::count(journal.begin(), journal.begin() + static_cast<std::ptrdiff_t>(size), '\n')));
  }
  std::string damaged = journal;  // behind a line that a crash of the machine left as zeros, nothing counts
  const std::size_t third = damaged.find('\n', damaged.find('\n') + 1) + 1;
  damaged.replace(third, damaged.find('\n', third) - third, damaged.find('\n', third) - third, '\0');
  put(damaged);
  expect_goes_on_behind(2);
}

TEST_F(ScoreResumeTest, WhatHasChangedIsNamedAndNothingIsTouched) {
  fail_after(8);
  const std::string journal = read_file(partial_);
  const ScoreOptions given = options_;
  const auto refusal_with = [&](auto&& change) {
    options_ = given;
    change(options_);
    std::string message = refusal();
    EXPECT_EQ(read_file(partial_), journal);
    return message;
  };
  EXPECT_THAT(refusal_with([](ScoreOptions& o) { o.settings["dtype"] = "auto"; }), HasSubstr("dtype was \"float32\""));
  EXPECT_THAT(refusal_with([](ScoreOptions& o) { o.model_hash = "abd"; }), HasSubstr("the model was abc"));
  EXPECT_THAT(refusal_with([](ScoreOptions& o) { o.add_special = false; }), HasSubstr("bare-text was \"false\""));
  EXPECT_THAT(refusal_with([](ScoreOptions& o) { o.resume = false; }), HasSubstr("--resume goes on with it, --overwrite starts anew"));
  EXPECT_THAT(refusal_with([](ScoreOptions& o) { o.overwrite = true; }), HasSubstr("can not be given together with --resume"));
  options_ = given;
  write_file(options_.input_file, thirty_lines() + "{\"text\": \"more\"}\n");
  EXPECT_THAT(refusal(), HasSubstr("was added since the job was started"));
  write_file(options_.input_file, "{\"text\": \"other\"}\n" + thirty_lines());
  EXPECT_THAT(refusal(), HasSubstr("line 1 is not what it was"));
  write_file(options_.input_file, thirty_lines());
  std::string more = journal;
  while (std::count(more.begin(), more.end(), '\n') < 31) more += journal;
  write_file(partial_, more);
  EXPECT_THAT(refusal(), HasSubstr("has more answers than there are requests"));
  write_file(partial_, journal);
  expect_goes_on_behind(static_cast<std::uint64_t>(std::count(journal.begin(), journal.end(), '\n')));
}

TEST_F(ScoreResumeTest, AJobThatIsCompleteHasNothingToDo) {
  options_.overwrite = false;
  options_.resume = true;
  FakeEngine engine;
  const ScoreResult result = run_score(options_, engine, &tokenizer_);
  EXPECT_EQ(result.answered, 24u);
  EXPECT_EQ(result.failed, 6u);
  EXPECT_EQ(result.resumed, 30u);
  EXPECT_TRUE(engine.submitted.empty());
  EXPECT_EQ(bytes(), expected_);
}

}  // namespace
}  // namespace lockstep::engine
