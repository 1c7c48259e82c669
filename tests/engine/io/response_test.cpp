#include "engine/io/response.h"

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/engine/io/fakes.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

class Response : public testing::Test {
 protected:
  FakeTokenizer tokenizer_;
  AnswerContext context_{tokenizer_, 1700000000, "model-name", "lockstep-test-n1"};
  AnswerRequest request_{{12, 0xabcdef}, "mine", Endpoint::kCompletions, "", std::nullopt, {77}, 1, false};

  static Choice choice(std::string text, std::vector<TokenId> tokens, FinishReason reason = FinishReason::kStop) {
    Choice result;
    result.text = std::move(text);
    result.tokens = std::move(tokens);
    result.finish_reason = reason;
    return result;
  }
  Answer answer(std::vector<Choice> choices) {
    Completion completion;
    for (std::uint32_t i = 0; i < choices.size(); ++i) choices[i].index = i;
    completion.choices = std::move(choices);
    completion.prompt_tokens = 3;
    return completed_answer(request_, std::span(&completion, 1), context_);
  }
};

TEST_F(Response, CompletionsShape) {
  const Answer line = answer({choice("ab", {100, 101, 1}), choice("c", {102}, FinishReason::kLength)});
  EXPECT_TRUE(line.ok);
  EXPECT_EQ(
      line.line,
      R"({"id":"batch_req_12_0000000000abcdef","custom_id":"mine","response":{"status_code":200,"request_id":"req_12_0000000000abcdef","body":)"
      R"({"id":"cmpl-12_0000000000abcdef","object":"text_completion","created":1700000000,"model":"model-name","choices":[)"
      R"({"text":"ab","index":0,"logprobs":null,"finish_reason":"stop"},{"text":"c","index":1,"logprobs":null,"finish_reason":"length"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7},"system_fingerprint":"lockstep-test-n1","lockstep":{"seed":77}}},"error":null})");
}

TEST_F(Response, ChatShape) {
  request_.endpoint = Endpoint::kChat;
  request_.model = "as-asked";
  request_.seed = -5;
  const Json body = Json::parse(answer({choice("ab", {100, 101})}).line)["response"]["body"];
  EXPECT_EQ(
      body.dump(),
      R"({"id":"chatcmpl-12_0000000000abcdef","object":"chat.completion","created":1700000000,"model":"as-asked","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"system_fingerprint":"lockstep-test-n1","lockstep":{"seed":-5}})");
}

TEST_F(Response, ChatLogprobsHaveBytesAndAlternatives) {
  request_.endpoint = Endpoint::kChat;
  request_.logprobs = true;
  Choice one = choice("\xc3\xa9", {0xc3 + 3, 0xa9 + 3, 1});
  one.logprobs = {
      {0xc3 + 3, -0.4402f, {{100, -1.5f}, {260, -2.0f}}}, {0xa9 + 3, -std::numeric_limits<float>::infinity(), {}}, {1, -1e-5f, {}}};
  const Json logprobs = Json::parse(answer({one}).line)["response"]["body"]["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs.dump(), R"({"content":[{"token":"bytes:\\xc3","logprob":-0.4402,"bytes":[195],"top_logprobs":[)"
                             R"({"token":"a","logprob":-1.5,"bytes":[97]},{"token":"Hi!","logprob":-2.0,"bytes":[72,105,33]}]},)"
                             R"({"token":"bytes:\\xa9","logprob":-9999.0,"bytes":[169],"top_logprobs":[]},)"
                             R"({"token":"</s>","logprob":-1e-05,"bytes":[60,47,115,62],"top_logprobs":[]}],"refusal":null})");
}

TEST_F(Response, AnEchoStandsBeforeTheAnswerAndItsFirstTokenHasNoLogprob) {
  request_.logprobs = true;
  request_.echoes = {
      {"\xc3\xa9"
       "b",
       0}};
  Completion completion;
  completion.prompt_logprobs = {{0xc3 + 3, -1.0f, {}}, {0xa9 + 3, -2.0f, {{260, -0.5f}}}, {'b' + 3, -3.0f, {}}};
  completion.choices = {choice("c", {'c' + 3}), choice("", {})};
  completion.choices[0].logprobs = {{'c' + 3, -4.0f, {}}};
  completion.choices[1].index = 1;
  request_.choices_per_prompt = 2;
  const Json choices = Json::parse(completed_answer(request_, std::span(&completion, 1), context_).line)["response"]["body"]["choices"];
  EXPECT_EQ(choices[0]["text"],
            "\xc3\xa9"
            "bc");
  EXPECT_EQ(choices[1]["text"],
            "\xc3\xa9"
            "b");
  EXPECT_EQ(choices[0]["logprobs"].dump(),
            R"({"tokens":["<s>","bytes:\\xc3","bytes:\\xa9","b","c"],"token_logprobs":[null,-1.0,-2.0,-3.0,-4.0],)"
            R"("top_logprobs":[null,{"bytes:\\xc3":-1.0},{"Hi!":-0.5,"bytes:\\xa9":-2.0},{"b":-3.0},{"c":-4.0}],)"
            R"("text_offset":[0,0,1,1,2]})");
  EXPECT_EQ(choices[1]["logprobs"]["tokens"].size(), 4u);
}

TEST_F(Response, ABeamHasItsScore) {
  request_.beam_search = true;
  Choice one = choice("ab", {100, 101});
  one.beam_score = -0.75f;
  EXPECT_EQ(Json::parse(answer({one}).line)["response"]["body"]["choices"][0]["beam_score"], -0.75);
}

TEST_F(Response, CompletionsLogprobsAreFourLists) {
  request_.logprobs = true;
  Choice one = choice("\xc3\xa9Hi!", {0xc3 + 3, 0xa9 + 3, 260, 1});
  one.logprobs = {
      {0xc3 + 3, -0.5f, {{0xc3 + 3, -0.5f}, {100, -1.5f}}}, {0xa9 + 3, -0.25f, {}}, {260, 0.0f, {}}, {1, -3.0f, {{100, -0.125f}}}};
  const Json logprobs = Json::parse(answer({one}).line)["response"]["body"]["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs.dump(), R"({"tokens":["bytes:\\xc3","bytes:\\xa9","Hi!","</s>"],"token_logprobs":[-0.5,-0.25,0.0,-3.0],)"
                             R"("top_logprobs":[{"bytes:\\xc3":-0.5,"a":-1.5},{"bytes:\\xa9":-0.25},{"Hi!":0.0},{"a":-0.125,"</s>":-3.0}],)"
                             R"("text_offset":[0,1,1,4]})");
}

TEST_F(Response, OffsetsStayWithinATextThatAStopStringHasCut) {
  request_.logprobs = true;
  Choice one = choice("a", {100, 101, 102});
  one.logprobs = {{100, -1.0f, {}}, {101, -1.0f, {}}, {102, -1.0f, {}}};
  EXPECT_EQ(Json::parse(answer({one}).line)["response"]["body"]["choices"][0]["logprobs"]["text_offset"].dump(), "[0,1,1]");
}

TEST_F(Response, ChoicesOfPromptArraysAreNumberedPromptMajor) {
  request_.choices_per_prompt = 2;
  request_.seeds = {77, 88};
  std::vector<Completion> completions(2);
  for (int p = 0; p < 2; ++p) {
    completions[p].prompt_tokens = 10;
    for (std::uint32_t i = 0; i < 2; ++i) {
      completions[p].choices.push_back(choice(std::string(1, static_cast<char>('a' + 2 * p + i)), {5}));
      completions[p].choices.back().index = i;
    }
  }
  const Json body = Json::parse(completed_answer(request_, completions, context_).line)["response"]["body"];
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], std::string(1, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(body["usage"]["total_tokens"], 24);
  EXPECT_EQ(body["lockstep"].dump(), R"({"seed":77,"prompt_seeds":[77,88]})");
}

TEST_F(Response, ARefusedLineHasItsStatusAndErrorBodyInTheResponse) {
  const Answer line = refused_answer({3, 1}, "c", RequestError(404, "model_not_found", "model", "the model \"x\" is not served here"));
  EXPECT_FALSE(line.ok);
  EXPECT_EQ(
      line.line,
      R"({"id":"batch_req_3_0000000000000001","custom_id":"c","response":{"status_code":404,"request_id":"req_3_0000000000000001","body":)"
      R"({"error":{"message":"the model \"x\" is not served here","type":"invalid_request_error","param":"model","code":"model_not_found"}}},"error":null})");
  EXPECT_THAT(refused_answer({3, 1}, "c", RequestError(400, "invalid_json", "", "m")).line, HasSubstr(R"("param":null)"));
}

TEST_F(Response, WhatTheEngineCouldNotFinishIsATopLevelError) {
  Choice bad = choice("", {}, FinishReason::kError);
  bad.error = "the logits are not finite";
  const Answer line = answer({choice("a", {100}), bad});
  EXPECT_FALSE(line.ok);
  EXPECT_EQ(line.line, R"({"id":"batch_req_12_0000000000abcdef","custom_id":"mine","response":null,"error":{"code":"generation_failed",)"
                       R"("message":"choice 1: the logits are not finite"}})");
}

TEST_F(Response, InvalidUtf8NeverThrowsAndLineSeparatorsAreEscaped) {
  const Answer line =
      answer({choice("a\xff\xe2\x80\xa8"
                     "b\xe2\x80\xa9"
                     "c\xc2\x85"
                     "d\n",
                     {100})});
  EXPECT_THAT(line.line, HasSubstr("a\xef\xbf\xbd\\u2028b\\u2029c\\u0085d\\n"));
  EXPECT_THAT(line.line, Not(HasSubstr("\n")));
  EXPECT_EQ(Json::parse(line.line)["response"]["body"]["choices"][0]["text"],
            "a\xef\xbf\xbd\xe2\x80\xa8"
            "b\xe2\x80\xa9"
            "c\xc2\x85"
            "d\n");
  EXPECT_NO_THROW(refused_answer({1, 1}, "c\xff", RequestError(400, "x", "p\xff", "m\xff")));
}

TEST_F(Response, AnAnswerSaysWhoseItIs) {
  const Answer line = answer({choice("a", {100})});
  EXPECT_EQ(answer_key(line.line), request_.key);
  EXPECT_EQ(answer_status(line.line), true);
  EXPECT_EQ(answer_status(refused_answer({3, 1}, "c", RequestError(400, "x", "", "m")).line), false);
  EXPECT_EQ(answer_status(failed_answer({3, 1}, "c", "x", "m").line), false);
  for (std::size_t length = 0; length < line.line.size(); ++length)
    EXPECT_EQ(answer_status(line.line.substr(0, length)), std::nullopt) << length;
  for (const char* text : {"", "{}", R"({"id":"batch_req_x"})", R"({"id":"batch_req_1_abc"})", R"({"id":"batch_req_0_0000000000000001"})",
                           R"({"id":"batch_req_1_00000000000000012"})", R"({"id":"batch_req_99999999999999999999_0000000000000001"})"}) {
    EXPECT_EQ(answer_key(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::engine
