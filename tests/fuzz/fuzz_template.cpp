// A chat template made by an enemy: parsed and rendered with the variables of a small conversation. Only TemplateError may come out.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Json = nlohmann::ordered_json;
  static const Json variables = {{"messages",
                                  {{{"role", "system"}, {"content", "Be brief."}},
                                   {{"role", "user"}, {"content", "caf\u00e9 <b> \U0001F600\n"}},
                                   {{"role", "assistant"},
                                    {"content", ""},
                                    {"tool_calls", {{{"id", "abcdefgh1"}, {"function", {{"name", "f"}, {"arguments", {{"x", 1.5}}}}}}}}},
                                   {{"role", "tool"}, {"content", "12"}, {"tool_call_id", "abcdefgh1"}}}},
                                 {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}}},
                                 {"documents", nullptr},
                                 {"add_generation_prompt", true},
                                 {"bos_token", "<s>"},
                                 {"x", 3},
                                 {"l", {3, 1, 2, -7, 0.5}},
                                 {"d", {{"a", 1}, {"b", {1, 2}}}}};
  constexpr lockstep::text::ChatTemplate::Limits kLimits{.max_steps = 20'000, .max_output_bytes = 1u << 20, .max_memory_bytes = 4u << 20};
  try {
    const lockstep::text::ChatTemplate parsed(std::string_view(reinterpret_cast<const char*>(data), size), kLimits);
    parsed.render(variables, 1735689600);
  } catch (const lockstep::text::TemplateError&) {
  }
  return 0;
}
