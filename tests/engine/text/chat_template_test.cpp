#include "engine/text/chat_template.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::text {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_TEST_DATA) + "/chat/" + name, std::ios::binary);
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

void expect_golden(const std::string& source, const Json& variables, const Json& expected) {
  if (expected.contains("text")) {
    try {
      EXPECT_EQ(render(source, variables), expected["text"].get<std::string>());
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

}  // namespace
}  // namespace lockstep::text
