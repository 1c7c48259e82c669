#include "engine/text/chat_template.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::text {
namespace {

using Json = nlohmann::ordered_json;

/// A file of the test data, or of the whole set of reference data (LOCKSTEP_GOLDENS=<folder>), where it is there.
std::string read(const std::string& name) {
  const char* goldens = std::getenv("LOCKSTEP_GOLDENS");
  const auto whole = std::filesystem::path(goldens ? goldens : "") / "chat" / name;
  std::ifstream file(goldens && std::filesystem::exists(whole) ? whole : std::filesystem::path(LOCKSTEP_TEST_DATA) / "chat" / name,
                     std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string render(const std::string& source, const Json& variables = Json::object(), std::int64_t now = 0) {
  return ChatTemplate(source).render(variables, now);
}

/// "Kind: message" of the error that a template ends with.
std::string error_of(const std::string& source, const Json& variables = Json::object(), ChatTemplate::Limits limits = {}) {
  try {
    return "no error, but: " + ChatTemplate(source, limits).render(variables).substr(0, 200);
  } catch (const TemplateError& error) {
    return error.kind() + ": " + error.message();
  }
}

void expect_golden(const std::string& source, const Json& variables, const Json& expected, std::int64_t now = 0) {
  if (expected.contains("text")) {
    try {
      EXPECT_EQ(render(source, variables, now), expected["text"].get<std::string>());
    } catch (const TemplateError& error) {
      ADD_FAILURE() << error.kind() << ": " << error.what();
    }
  } else {
    EXPECT_EQ(error_of(source, variables), expected["error"].get<std::string>() + ": " + expected["message"].get<std::string>());
  }
}

TEST(ChatTemplate, SmallProgramsMatchTheReference) {
  const Json units = Json::parse(read("jinja_units.json"));
  ASSERT_EQ(units["cases"].size(), 128u);
  for (const Json& unit : units["cases"]) {
    SCOPED_TRACE(unit["template"].dump());
    expect_golden(unit["template"], unit["variables"], unit["expect"]);
  }
}

TEST(ChatTemplate, EveryTemplateAndConversationMatchesTheReference) {
  const Json golden = Json::parse(read("golden.json"));
  ASSERT_EQ(golden["cases"].size(), 462u);
  for (const Json& example : golden["cases"]) {
    SCOPED_TRACE(example["template"].dump() + " " + example["conversation"].dump() + " " + example["extra"].dump());
    const Json& about = golden["templates"][example["template"].get<std::string>()];
    const Json& conversation = golden["conversations"][example["conversation"].get<std::string>()];
    Json variables = {{"messages", conversation["messages"]},
                      {"tools", conversation.value("tools", Json())},
                      {"documents", nullptr},
                      {"add_generation_prompt", example["add_generation_prompt"]}};
    for (const char* token : {"bos_token", "eos_token"}) {
      if (about.contains(token) && !about[token].is_null()) variables[token] = about[token];
    }
    variables.update(example["extra"]);
    expect_golden(read(about["file"]), variables, example["expect"]);
  }
}

TEST(ChatTemplate, FurtherProgramsMatchTheReference) {
  const Json more = Json::parse(read("jinja_more.json"));
  ASSERT_GT(more["cases"].size(), 300u);
  for (const Json& unit : more["cases"]) {
    SCOPED_TRACE(unit["template"].dump());
    expect_golden(unit["template"], more["variables"], unit["expect"], more["now"]);
  }
}

TEST(ChatTemplate, ToolsInTheMannerOfLargeTemplatesMatchTheReference) {
  const Json tools = Json::parse(read("jinja_tools.json"));
  ASSERT_EQ(tools["cases"].size(), 9u);
  for (const Json& unit : tools["cases"]) {
    SCOPED_TRACE(unit["template"].dump());
    expect_golden(unit["template"], tools["variables"], unit["expect"], tools["now"]);
  }
}

TEST(ChatTemplate, AnErrorNamesItsLine) {
  try {
    render("a\n{% if true %}\n{{ nope.x }}\n{% endif %}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.line(), 3);
    EXPECT_STREQ(error.what(), "'nope' is undefined (template line 3)");
  }
  try {
    render("a\n\n{{ 1 + }}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.kind(), "TemplateSyntaxError");
    EXPECT_EQ(error.line(), 3);
  }
}

TEST(ChatTemplate, NamesWhatIsNotSupported) {
  EXPECT_EQ(error_of("{% include 'x' %}"), "TemplateSyntaxError: the tag 'include' is not supported in chat templates");
  EXPECT_EQ(error_of("{{ [1] | random }}"), "TemplateRuntimeError: the filter 'random' is not supported: a prompt must be reproducible");
  EXPECT_EQ(error_of("{{ strftime_now('%Q') }}"), "ValueError: strftime_now: the format %Q is not supported");
  EXPECT_THAT(error_of("{{ 2 ** 200 }}"), testing::StartsWith("OverflowError: an integer is too large"));
  EXPECT_THAT(error_of("{{ 9" + std::string(50, '9') + " }}"), testing::HasSubstr("is too large"));
}

TEST(ChatTemplate, TimeIsUtcAndEnglish) {
  EXPECT_EQ(render("{{ strftime_now('%d %B %Y, %A %H:%M:%S %p %j') }}", Json::object(), 951782399),
            "28 February 2000, Monday 23:59:59 PM 059");
  EXPECT_EQ(render("{{ strftime_now('%-d %b %y %e %%') }}", Json::object(), 951782400 + 86400), "1 Mar 00  1 %");
  EXPECT_EQ(render("{{ strftime_now('%Y-%m-%d') }}", Json::object(), -1), "1969-12-31");
}

TEST(ChatTemplate, NestingOfAnyKindIsRefused) {
  const auto times = [](const std::string& piece, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += piece;
    return text;
  };
  constexpr int kMany = 20000;
  for (const std::string opening : {"(", "[", "{1:", "not ", "-", "- +", "1 if 1 else ", "1 ** -", "f(", "x[", "x|default(", "x is eq("}) {
    EXPECT_THAT(error_of("{{ " + times(opening, kMany)), testing::StartsWith("TemplateSyntaxError: ")) << opening;
  }
  for (const std::string chained : {"+1", "~(1+1)*1", ".x", "[0]", "|trim", "()", " and 1", " is defined", "[1:]", "**1"}) {
    const std::string error = error_of("{{ x" + times(chained, kMany) + " }}");
    if (chained == "~(1+1)*1") continue;  // a row of ~ is flat
    EXPECT_THAT(error, testing::StartsWith("TemplateSyntaxError: ")) << chained;
  }
  EXPECT_THAT(error_of(times("{% if 1 %}", kMany)), testing::HasSubstr("nests over"));
  EXPECT_THAT(error_of(times("{% for x in y %}", kMany)), testing::HasSubstr("nests over"));
}

TEST(ChatTemplate, RecursionEndsWithAnError) {
  EXPECT_EQ(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "RecursionError: the template recurses too deeply");
  EXPECT_EQ(error_of("{% macro f() %}{% call f() %}{{ caller }}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}"),
            "RecursionError: the template recurses too deeply");
  EXPECT_EQ(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), "RecursionError: the template recurses too deeply");
  EXPECT_THAT(error_of("{% set n = namespace(x=1) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}"),
              testing::StartsWith("LimitError: "));
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) {  // copied by recursion below, on a stack that sanitizers fill faster
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  EXPECT_THAT(error_of("{{ x }}", {{"x", deep}}), testing::StartsWith("LimitError: "));
}

TEST(ChatTemplate, MemoryOutputAndStepsAreBounded) {
  for (const char* source :
       {"{{ 'x' * 1000000000000 }}", "{{ [0] * 1000000000000 }}", "{{ 'x'.ljust(10000000000) }}", "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}", "{{ 'a\nb' | indent(10000000000, true) }}", "{{ ('x' * 60000000).replace('x', 'y' * 60000000) }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ "
        "n.x == n.y }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"}) {
    EXPECT_THAT(error_of(source, {}, {.max_steps = 500'000}),
                testing::AnyOf(testing::StartsWith("LimitError: "), testing::StartsWith("ValueError: ")))
        << source;
  }
  EXPECT_THAT(error_of("{{ 'x' * 101 }}", {}, {.max_output_bytes = 100}), testing::StartsWith("LimitError: "));
  EXPECT_THAT(error_of("{% for i in range(50) %}xyz{% endfor %}", {}, {.max_output_bytes = 100}), testing::StartsWith("LimitError: "));
}

TEST(ChatTemplate, MemoryOfDeadValuesIsGivenBack) {
  const ChatTemplate growing(
      "{% set n = namespace(x='') %}{% for i in range(3000) %}{% set n.x = n.x ~ '0123456789' %}{% endfor %}{{ n.x | length }}",
      {.max_memory_bytes = 1u << 20});  // 45 MB in all, 30 kB at a time
  EXPECT_EQ(growing.render(Json::object()), "30000");
}

TEST(ChatTemplate, CyclesThroughNamespacesAreFreed) {  // the leak sanitizer is the judge
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.me = n %}{% macro f() %}{% endmacro %}{% set n.f = f %}"
                   "{% for x in [1] recursive %}{% set n.l = loop %}{{ loop.changed(loop) }}{% endfor %}"),
            "True");
}

TEST(ChatTemplate, OneObjectServesManyThreads) {
  const Json conversation = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"add_generation_prompt", true}};
  const ChatTemplate shared(read("templates/chatml.jinja"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(shared.render(conversation), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplate, TextThatIsNotUtf8IsRefused) {
  EXPECT_EQ(error_of("a\xff{{ 1 }}"), "TemplateSyntaxError: the template is not UTF-8");
  EXPECT_EQ(error_of("{{ x }}", {{"x", "a\xff"}}), "TypeError: a template variable has text that is not UTF-8");
  EXPECT_EQ(error_of("{{ '\\ud83d' }}"), "TemplateSyntaxError: a string escape is not a character (a lone surrogate, or too large)");
}

}  // namespace
}  // namespace lockstep::text
