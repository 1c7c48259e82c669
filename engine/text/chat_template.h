#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::text {

/// A template that does not parse, fails, exceeds its limits, or calls raise_exception. Costs the request, never the job.
class TemplateError : public std::runtime_error {
 public:
  TemplateError(std::string kind, const std::string& message) : std::runtime_error(message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }  // the class that the reference raises: "TemplateError", "UndefinedError", "TemplateSyntaxError", "SecurityError", ...

 private:
  std::string kind_;
};

/// A chat template: our own interpreter of the part of Jinja that real templates use, as transformers sets it up (trim_blocks, lstrip_blocks, loop controls,
/// a sandbox, tojson without HTML escapes, raise_exception, strftime_now). Immutable after construction: one object serves all threads.
class ChatTemplate {
 public:
  struct Limits {
    std::size_t max_steps = 5'000'000;
    std::size_t max_output_bytes = 64u << 20;
  };
  /// @throws TemplateError of kind TemplateSyntaxError with the line.
  explicit ChatTemplate(std::string_view source);
  ChatTemplate(std::string_view source, Limits limits);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// `variables`: an object (messages, tools, add_generation_prompt, bos_token, ...; a null is defined and none, an absent key undefined).
  /// `now_unix`: the time that strftime_now sees, in seconds, UTC.
  std::string render(const nlohmann::ordered_json& variables, std::int64_t now_unix = 0) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace lockstep::text
