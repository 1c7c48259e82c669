#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/io/request_error.h"
#include "engine/model/spec.h"
#include "engine/runtime/request.h"
#include "engine/sampling/params.h"

namespace lockstep::engine {

/// What the parser must know of the model.
struct RequestContext {
  GenerationDefaults defaults;
  std::size_t vocab_size = 0;                    // token ids of a request lie below it
  std::optional<std::string> served_model_name;  // if given, a request that names another model is a 404
};

enum class Endpoint : std::uint8_t { kChat, kCompletions };

/// A prompt of /v1/completions: text, or token ids.
using RawPrompt = std::variant<std::string, std::vector<TokenId>>;

/// A request line that is in order, before templates and tokenizing.
struct ParsedRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;               // body.model; empty if absent
  std::vector<RawPrompt> prompts;  // completions: at least one
  nlohmann::ordered_json
      chat;                 // chat: what the template sees: messages, tools, documents, add_generation_prompt, chat_template_kwargs' keys
  SamplingParams sampling;  // defaults applied; seed and max_tokens are only valid where the two below are present
  std::optional<std::int64_t> seed;         // as the request gave it
  std::optional<std::uint32_t> max_tokens;  // as the request gave it
  bool echo = false;                        // completions: the prompt stands before the answer, with its log-probabilities
};

/// One line of a batch file, good or bad.
struct RequestLine {
  std::string custom_id;              // "line-N" where the line has none that can be used
  std::optional<RequestError> error;  // if present, the rest of `request` is not to be used
  ParsedRequest request;
};

/// Reads one line: the OpenAI batch shape {"custom_id", "method", "url", "body": {...}}, or a plain {"prompt": ...} or {"messages": [...]}.
/// Never throws for what the line holds: each fault becomes `error`, which names the parameter and its value. docs/batch-format.md lists
/// the parameters. Nesting, the number of values and the keys of an object are limited, so that memory stays within about 100 times the
/// line and 400 MiB.
RequestLine parse_request_line(std::string_view line, std::uint64_t line_number, const RequestContext& context);

}  // namespace lockstep::engine
