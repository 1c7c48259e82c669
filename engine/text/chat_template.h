#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace lockstep::text {

/// A template that does not parse, fails, exceeds its limits, or calls raise_exception. Costs the request, never the job.
class TemplateError : public std::runtime_error {
 public:
  /// `line`: the template's line, from 1; 0 where there is none. what() is the message, followed by the line where it is known.
  TemplateError(std::string kind, std::string message, int line = 0)
      : std::runtime_error(line > 0 ? message + " (template line " + std::to_string(line) + ")" : message),
        kind_(std::move(kind)),
        message_(std::move(message)),
        line_(line) {}

  /// The class that the reference raises: "TemplateError" (raise_exception), "UndefinedError", "TemplateSyntaxError", "SecurityError",
  /// "TypeError", ...; "LimitError" (ours) where a limit of this interpreter is passed.
  const std::string& kind() const { return kind_; }
  /// The reference's message, without the line.
  const std::string& message() const { return message_; }
  int line() const { return line_; }

 private:
  std::string kind_;
  std::string message_;
  int line_;
};

/// A chat template: our own interpreter of the part of Jinja that real templates use, as transformers sets it up (trim_blocks,
/// lstrip_blocks, loop controls, a sandbox, tojson without HTML escapes, raise_exception, strftime_now). Immutable after construction: one
/// object serves all threads.
class ChatTemplate {
 public:
  /// Bounds of one render. A step is about one node evaluated, one element made or 256 bytes of text made.
  struct Limits {
    std::size_t max_steps = 5'000'000;
    std::size_t max_output_bytes = 64u << 20;   // of the text, and of any string on the way
    std::size_t max_memory_bytes = 256u << 20;  // of all values alive at one time
  };
  /// @throws TemplateError of kind TemplateSyntaxError with the line.
  explicit ChatTemplate(std::string_view source);
  ChatTemplate(std::string_view source, Limits limits);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// `variables`: an object (messages, tools, add_generation_prompt, bos_token, ...; a null is defined and none, an absent key undefined).
  /// `now_unix`: the time that strftime_now sees, in seconds, UTC.
  /// @throws TemplateError, whatever the template and the variables are.
  std::string render(const nlohmann::ordered_json& variables, std::int64_t now_unix = 0) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace lockstep::text
