#include "engine/io/request_parser.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RequestLine parse(const std::string& line, RequestContext context = {}) {
  if (context.vocab_size == 0) context.vocab_size = 100;
  return parse_request_line(line, 7, context);
}

ParsedRequest good(const std::string& line, const RequestContext& context = {}) {
  const RequestLine result = parse(line, context);
  EXPECT_FALSE(result.error.has_value()) << line << ": " << (result.error ? result.error->what() : "");
  return result.request;
}

/// A completions line with one more parameter.
std::string with(const std::string& parameter) { return R"({"prompt": "x", )" + parameter + "}"; }
std::string chat_with(const std::string& parameter) { return R"({"messages": [{"role": "user", "content": "x"}], )" + parameter + "}"; }

void expect_refused(const std::string& line, const std::string& param, const std::string& message, int status = 400) {
  const RequestLine result = parse(line);
  ASSERT_TRUE(result.error.has_value()) << line;
  EXPECT_EQ(result.error->status(), status) << line;
  EXPECT_EQ(result.error->param(), param) << line;
  EXPECT_THAT(result.error->what(), HasSubstr(message)) << line;
}

TEST(RequestParser, ReadsTheBatchShape) {
  const RequestLine chat = parse(R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
      "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 5, "temperature": 0}})");
  ASSERT_FALSE(chat.error);
  EXPECT_EQ(chat.custom_id, "a");
  EXPECT_EQ(chat.request.endpoint, Endpoint::kChat);
  EXPECT_EQ(chat.request.model, "m");
  EXPECT_EQ(chat.request.chat["messages"][0]["content"], "hello");
  EXPECT_EQ(chat.request.chat["add_generation_prompt"], true);
  EXPECT_TRUE(chat.request.chat["tools"].is_null());
  EXPECT_EQ(chat.request.max_tokens, 5u);
  EXPECT_TRUE(chat.request.sampling.greedy());

  const RequestLine completion = parse(R"({"custom_id": "b", "url": "/v1/completions", "body": {"prompt": [1, 2, 99]}})");
  ASSERT_FALSE(completion.error);
  EXPECT_THAT(completion.request.prompts, ElementsAre(RawPrompt(std::vector<TokenId>{1, 2, 99})));
  EXPECT_FALSE(completion.request.max_tokens.has_value());
}

TEST(RequestParser, ReadsPlainLinesAndNamesThemByLine) {
  const RequestLine line = parse(R"({"prompt": "x", "seed": -3, "stop": "y"})");
  ASSERT_FALSE(line.error);
  EXPECT_EQ(line.custom_id, "line-7");
  EXPECT_EQ(line.request.seed, -3);
  EXPECT_THAT(line.request.sampling.stop, ElementsAre("y"));
  EXPECT_EQ(parse(R"({"custom_id": "mine", "messages": [{"role": "user", "content": "x"}]})").custom_id, "mine");
}

TEST(RequestParser, ABadLineKeepsItsCustomId) {
  const RequestLine line = parse(R"({"custom_id": "a", "body": {"prompt": "x", "top_p": 7}})");
  EXPECT_TRUE(line.error.has_value());
  EXPECT_EQ(line.custom_id, "a");
}

TEST(RequestParser, ReadsPromptArrays) {
  EXPECT_THAT(good(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(RawPrompt("a"), RawPrompt("b")));
  EXPECT_THAT(good(R"({"prompt": [[1, 2], [3]]})").prompts,
              ElementsAre(RawPrompt(std::vector<TokenId>{1, 2}), RawPrompt(std::vector<TokenId>{3})));
  expect_refused(R"({"prompt": []})", "prompt", "prompt must not be empty, but is []");
  expect_refused(R"({"prompt": [[]]})", "prompt[0]", "at least one token id");
  expect_refused(R"({"prompt": ["a", 3]})", "prompt[1]", "prompt[1] must be a string, but is 3");
  expect_refused(R"({"prompt": [3, "a"]})", "prompt[1]", "but is \"a\"");
  expect_refused(R"({"prompt": [[3], 4]})", "prompt[1]", "must be a list of token ids, but is 4");
  expect_refused(R"({"prompt": 5})", "prompt", "but is 5");
  expect_refused(R"({"prompt": [true]})", "prompt[0]", "but is true");
}

TEST(RequestParser, TokenIdsMustBeInTheVocabulary) {
  expect_refused(R"({"prompt": [1, 100]})", "prompt[1]", "prompt[1] must be a whole number from 0 to 99, but is 100");
  expect_refused(R"({"prompt": [-1]})", "prompt[0]", "but is -1");
  expect_refused(R"({"prompt": [18446744073709551615]})", "prompt[0]", "18446744073709551615");
  expect_refused(R"({"prompt": [1.5]})", "prompt[0]", "1.5");
  EXPECT_THAT(good(R"({"prompt": [5.0]})").prompts, ElementsAre(RawPrompt(std::vector<TokenId>{5})));
  expect_refused(with(R"("stop_token_ids": [100])"), "stop_token_ids[0]", "from 0 to 99");
}

TEST(RequestParser, EverySamplingParameterArrives) {
  const SamplingParams s =
      good(with(R"("temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1,
      "frequency_penalty": 2, "n": 3, "ignore_eos": true, "stop": ["a", "b"], "stop_token_ids": [4, 5], "logprobs": 5,
      "typical_p": 0.8, "no_repeat_ngram_size": 3, "logit_bias": {"7": -100, "5": 1.5}, "min_tokens": 6, "max_tokens": 6)"))
          .sampling;
  EXPECT_FLOAT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_FLOAT_EQ(s.top_p, 0.9f);
  EXPECT_FLOAT_EQ(s.min_p, 0.1f);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(s.presence_penalty, -1.0f);
  EXPECT_FLOAT_EQ(s.frequency_penalty, 2.0f);
  EXPECT_EQ(s.n, 3u);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_THAT(s.stop, ElementsAre("a", "b"));
  EXPECT_THAT(s.stop_token_ids, ElementsAre(4, 5));
  EXPECT_EQ(s.logprobs, 5);
  EXPECT_FLOAT_EQ(s.typical_p, 0.8f);
  EXPECT_EQ(s.no_repeat_ngram_size, 3u);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(5, 1.5f), std::pair(7, -100.0f)));
  EXPECT_EQ(s.min_tokens, 6u);
}

TEST(RequestParser, AbsentAndNullMeanTheDefaultOfTheModel) {
  RequestContext context;
  context.vocab_size = 100;
  context.defaults.temperature = 0.6f;
  context.defaults.top_p = 0.95f;
  context.defaults.top_k = 20;
  const SamplingParams s = good(with(R"("temperature": null, "top_p": 0.5)"), context).sampling;
  EXPECT_FLOAT_EQ(s.temperature, 0.6f);
  EXPECT_FLOAT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_FLOAT_EQ(good(R"({"prompt": "x"})").sampling.temperature, 1.0f);
}

TEST(RequestParser, WrongTypesAndRangesNameParameterAndValue) {
  expect_refused(with(R"("temperature": "hot")"), "temperature", "temperature must be a number from 0.0 to 2.0, but is \"hot\"");
  expect_refused(with(R"("temperature": -0.1)"), "temperature", "-0.1");
  expect_refused(with(R"("temperature": 2.5)"), "temperature", "2.5");
  expect_refused(with(R"("top_p": 1.5)"), "top_p", "1.5");
  expect_refused(with(R"("min_p": -1)"), "min_p", "-1");
  expect_refused(with(R"("top_k": 1.5)"), "top_k", "1.5");
  expect_refused(with(R"("top_k": -2)"), "top_k", "-2");
  expect_refused(with(R"("repetition_penalty": 0)"), "repetition_penalty", "but is 0");
  expect_refused(with(R"("presence_penalty": 3)"), "presence_penalty", "3");
  expect_refused(with(R"("frequency_penalty": [1])"), "frequency_penalty", "[1]");
  expect_refused(with(R"("n": 0)"), "n", "n must be a whole number from 1 to 128, but is 0");
  expect_refused(with(R"("n": 129)"), "n", "129");
  expect_refused(with(R"("seed": 1e30)"), "seed", "1e+30");
  expect_refused(with(R"("seed": 9223372036854775808)"), "seed", "9223372036854775808");
  expect_refused(with(R"("max_tokens": 0)"), "max_tokens", "must be at least 1 where echo is not true, but is 0");
  expect_refused(chat_with(R"("max_tokens": 0)"), "max_tokens", "but is 0");
  expect_refused(with(R"("max_tokens": true)"), "max_tokens", "true");
  expect_refused(with(R"("stop": 5)"), "stop", "5");
  expect_refused(with(R"("stop": [""])"), "stop", "empty string");
  expect_refused(with(R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"), "stop", "at most 16");
  expect_refused(with(R"("ignore_eos": 1)"), "ignore_eos", "ignore_eos must be true or false, but is 1");
  expect_refused(with(R"("logprobs": 21)"), "logprobs", "21");
  expect_refused(with(R"("logprobs": true)"), "logprobs", "true");
  expect_refused(with(R"("model": 3)"), "model", "3");
  expect_refused(R"({"prompt": ["a","b"], "n": 128, "custom_id": 5})", "custom_id",
                 "custom_id must be a string that is not empty, but is 5");
}

TEST(RequestParser, ChatLogprobsAreASwitchAndANumber) {
  EXPECT_EQ(good(chat_with(R"("logprobs": true, "top_logprobs": 3)")).sampling.logprobs, 3);
  EXPECT_EQ(good(chat_with(R"("top_logprobs": 20, "logprobs": true)")).sampling.logprobs, 20);
  EXPECT_EQ(good(chat_with(R"("logprobs": true)")).sampling.logprobs, 0);
  EXPECT_EQ(good(chat_with(R"("logprobs": false)")).sampling.logprobs, -1);
  expect_refused(chat_with(R"("top_logprobs": 3)"), "top_logprobs", "needs logprobs");
  expect_refused(chat_with(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs", "21");
  expect_refused(chat_with(R"("logprobs": 5)"), "logprobs", "5");
}

TEST(RequestParser, UnknownAndUnsupportedParametersAreNamedButNeutralValuesPass) {
  expect_refused(with(R"("temprature": 1)"), "temprature", "unknown or unsupported parameter \"temprature\"");
  expect_refused(with(R"("echo": 1)"), "echo", "echo must be true or false, but is 1");
  expect_refused(chat_with(R"("echo": true)"), "echo", "echo is not supported, except false, but is true");
  expect_refused(with(R"("stream": true)"), "stream", "but is true");
  expect_refused(with(R"("logit_bias": [5])"), "logit_bias", "must be an object of token ids and biases");
  expect_refused(with(R"("logit_bias": {"five": 1})"), "logit_bias", "as its keys, but is \"five\"");
  expect_refused(with(R"("logit_bias": {"-1": 1})"), "logit_bias", "as its keys, but is \"-1\"");
  expect_refused(with(R"("logit_bias": {"4000000000": 1})"), "logit_bias", "as its keys");
  expect_refused(with(R"("logit_bias": {"5": 101})"), "logit_bias.5", "must be a number from -100.0 to 100.0, but is 101");
  expect_refused(with(R"("logit_bias": {"5": 1, "05": 2})"), "logit_bias", "must name every token once");
  expect_refused(with(R"("min_tokens": -1)"), "min_tokens", "must be a whole number");
  expect_refused(with(R"("min_tokens": 6, "max_tokens": 5)"), "min_tokens", "must be at most max_tokens, but is 6 of 5");
  expect_refused(with(R"("typical_p": 1.5)"), "typical_p", "must be a number from 0.0 to 1.0");
  expect_refused(with(R"("no_repeat_ngram_size": 2.5)"), "no_repeat_ngram_size", "must be a whole number");
  expect_refused(with(R"("best_of": 2)"), "best_of", "best_of needs use_beam_search to be true");
  expect_refused(with(R"("suffix": "y")"), "suffix", "suffix");
  expect_refused(with(R"("top_logprobs": 2)"), "top_logprobs", "top_logprobs");
  expect_refused(chat_with(R"("prompt": "x", "response_format": {"type": "json_object"})"), "prompt", "both given");
  expect_refused(chat_with(R"("response_format": {"type": "json_object"})"), "response_format", "json_object");
  expect_refused(R"({"custom_id": "a", "body": {"prompt": "x"}, "temperature": 0})", "temperature",
                 "unknown key \"temperature\" beside body");
  good(with(
      R"("user": 5, "metadata": {"a": "b"}, "store": true, "stream": false, "echo": false, "logit_bias": null, "best_of": null, "whatever": null)"));
  good(chat_with(R"("response_format": {"type": "text"}, "tool_choice": "auto")"));
}

TEST(RequestParser, EchoMayAskForNoTokens) {
  const ParsedRequest request = good(with(R"("echo": true, "max_tokens": 0, "logprobs": 1)"));
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.max_tokens, 0u);
  EXPECT_FALSE(good(with(R"("echo": false, "max_tokens": 1)")).echo);
}

TEST(RequestParser, ABeamSearchHasItsOwnParameters) {
  const ParsedRequest request =
      good(with(R"("use_beam_search": true, "n": 2, "best_of": 4, "length_penalty": 0.5, "early_stopping": "never", "stop_token_ids": [7],
                   "max_tokens": 9, "temperature": 0, "seed": 3, "stream": false)"));
  ASSERT_TRUE(request.sampling.beams.has_value());
  EXPECT_EQ(request.sampling.beams->num_beams, 4u);
  EXPECT_EQ(request.sampling.n, 2u);
  EXPECT_EQ(request.sampling.beams->length_penalty, 0.5f);
  EXPECT_EQ(request.sampling.beams->early_stopping, EarlyStopping::kNever);
  EXPECT_EQ(request.sampling.stop_token_ids, std::vector<TokenId>{7});
  EXPECT_EQ(good(with(R"("use_beam_search": true, "n": 3)")).sampling.beams->num_beams, 3u);
  EXPECT_EQ(good(chat_with(R"("use_beam_search": true, "early_stopping": true)")).sampling.beams->early_stopping, EarlyStopping::kYes);
  EXPECT_FALSE(good(with(R"("use_beam_search": false)")).sampling.beams.has_value());

  expect_refused(with(R"("use_beam_search": 1)"), "use_beam_search", "must be true or false");
  expect_refused(with(R"("use_beam_search": true, "n": 3, "best_of": 2)"), "best_of", "best_of must be at least n, but is 2 of 3");
  expect_refused(with(R"("use_beam_search": true, "early_stopping": "always")"), "early_stopping", "true, false or \"never\"");
  expect_refused(with(R"("use_beam_search": true, "length_penalty": 11)"), "length_penalty", "11");
  expect_refused(with(R"("length_penalty": 1)"), "length_penalty", "needs use_beam_search");
  for (const auto& [name, value] : {std::pair{"temperature", "0.5"},
                                    {"top_p", "0.5"},
                                    {"stop", "\"x\""},
                                    {"logprobs", "1"},
                                    {"echo", "true"},
                                    {"min_tokens", "1"},
                                    {"logit_bias", "{\"5\": 1}"},
                                    {"repetition_penalty", "1.1"}}) {
    expect_refused(with("\"use_beam_search\": true, \"" + std::string(name) + "\": " + value), name, "together with use_beam_search");
  }
}

TEST(RequestParser, MessagesAreChecked) {
  EXPECT_EQ(
      good(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"}]})")
          .chat["messages"]
          .dump(),
      R"([{"role":"user","content":"a\nb","name":"n"}])");
  EXPECT_EQ(
      good(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function",
      "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}}]}]})")
          .chat["messages"][1]["tool_calls"][0]["function"]["arguments"]
          .dump(),
      R"({"b":1,"a":[2]})");
  expect_refused(R"({"messages": []})", "messages", "at least one message");
  expect_refused(R"({"messages": "hi"})", "messages", "but is \"hi\"");
  expect_refused(R"({"messages": ["hi"]})", "messages[0]", "must be an object");
  expect_refused(R"({"messages": [{"content": "x"}]})", "messages[0].role", "missing");
  expect_refused(R"({"messages": [{"role": 5, "content": "x"}]})", "messages[0].role", "5");
  expect_refused(R"({"messages": [{"role": "user"}]})", "messages[0].content", "missing");
  expect_refused(R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content", "5");
  expect_refused(R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
                 "messages[0].content[0].type", "image_url");
  expect_refused(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text", "missing");
  expect_refused(R"({"messages": [{"role": "a", "tool_calls": [{"function": {"arguments": "{"}}]}]})",
                 "messages[0].tool_calls[0].function.arguments", "JSON");
}

TEST(RequestParser, ToolsAndTemplateArgumentsReachTheTemplate) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";
  const auto chat =
      good(chat_with(R"("tools": )" + tools + R"(, "add_generation_prompt": false, "chat_template_kwargs": {"enable_thinking": false})"))
          .chat;
  EXPECT_EQ(chat["tools"].dump(), tools);
  EXPECT_EQ(chat["add_generation_prompt"], false);
  EXPECT_EQ(chat["enable_thinking"], false);
  expect_refused(chat_with(R"("tools": [{"type": "web"}])"), "tools[0].type", "web");
  expect_refused(chat_with(R"("tools": {})"), "tools", "list");
  expect_refused(chat_with(R"("chat_template_kwargs": {"messages": []})"), "chat_template_kwargs", "messages");
  expect_refused(chat_with(R"("chat_template_kwargs": 1)"), "chat_template_kwargs", "1");
}

TEST(RequestParser, MethodAndUrlAreCheckedWhereGiven) {
  expect_refused(R"({"method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}})", "method",
                 "method must be \"POST\", but is \"GET\"");
  expect_refused(R"({"url": "/v1/embeddings", "body": {"input": "x"}})", "url", "/v1/embeddings");
  expect_refused(R"({"url": 3, "body": {"prompt": "x"}})", "url", "3");
  expect_refused(R"({"url": "/v1/completions", "body": {"messages": []}})", "messages", "unsupported parameter");
  expect_refused(R"({"url": "/v1/chat/completions", "body": {"model": "m"}})", "messages", "missing");
  expect_refused(R"({"url": "/v1/chat/completions"})", "body", "missing");
  expect_refused(R"({"custom_id": "a"})", "prompt", "neither");
  expect_refused(R"({"body": "text"})", "body", "body must be an object, but is \"text\"");
  expect_refused(R"({"body": null})", "body", "null");
}

TEST(RequestParser, AnotherModelThanTheServedOneIs404) {
  RequestContext context;
  context.vocab_size = 100;
  good(with(R"("model": "anything")"), context);
  context.served_model_name = "mine";
  good(with(R"("model": "mine")"), context);
  good(R"({"prompt": "x"})", context);
  const RequestLine line = parse(with(R"("model": "other")"), context);
  ASSERT_TRUE(line.error);
  EXPECT_EQ(line.error->status(), 404);
  EXPECT_EQ(line.error->code(), "model_not_found");
  EXPECT_THAT(line.error->what(), HasSubstr("\"other\""));
}

TEST(RequestParser, WhatIsNoObjectIsRefused) {
  expect_refused("[1]", "", "must be a JSON object, but is [1]");
  expect_refused("null", "", "but is null");
  expect_refused("5", "", "but is 5");
  expect_refused("\"x\"", "", "\"x\"");
  expect_refused("", "", "byte 1");
}

TEST(RequestParser, BrokenJsonSaysWhere) {
  expect_refused(R"({"prompt": "x")", "", "at byte 15");
  expect_refused(R"({"prompt": x})", "", "invalid literal at byte 12");
  expect_refused("{\"prompt\": \"a\xff\"}", "", "UTF-8");
  expect_refused("{\"prompt\": \"\xed\xa0\x80\"}", "", "UTF-8");
  expect_refused(R"({"prompt": "\ud800"})", "", "surrogate");
  expect_refused(R"({"prompt": "x"} {"prompt": "y"})", "", "byte 17");
  expect_refused(R"({"prompt": "x", "seed": 1e999})", "", "number overflow");
  expect_refused(std::string("{\"prompt\": \"a\0b\"}", 17), "", "byte");
  expect_refused("{\"prompt\": \"" + std::string(1000, 'x'), "", "byte");
  EXPECT_LT(std::string(parse("{\"prompt\": \"" + std::string(100'000, 'x')).error->what()).size(), 300u);
}

TEST(RequestParser, HostileShapesAreRefusedQuickly) {
  expect_refused(std::string(1'000'000, '['), "", "nested deeper than 128");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += R"({"a":)";
  expect_refused(nested, "", "nested deeper than 128");
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += "\"k" + std::to_string(i) + "\":1,";
  expect_refused(keys + "\"z\":1}", "", "more than 1024 keys");
  expect_refused(R"({"prompt": [)" + std::string(10'000'000, ',') + "]}", "", "more than 4194304 values");
  good(R"({"prompt": "[[[[{{{{,,,,\"::::\\"})");
  expect_refused(with("\"metadata\": " + std::string(120, '[') + std::string(120, ']') + ", \"x\": 1"), "x", "\"x\"");
}

TEST(RequestParser, OfKeysThatOccurTwiceTheLastCounts) { EXPECT_EQ(good(R"({"prompt": "x", "n": 2, "n": 3})").sampling.n, 3u); }

TEST(RequestParser, ValuesInMessagesAreCutAtWholeCharacters) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "\xe2\x82\xac";
  const RequestLine line = parse(with("\"seed\": \"" + text + "\""));
  ASSERT_TRUE(line.error);
  EXPECT_THAT(line.error->what(), testing::EndsWith("\xe2\x82\xac..."));
}

}  // namespace
}  // namespace lockstep::engine
