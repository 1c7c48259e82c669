#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/io/request_parser.h"
#include "engine/runtime/request.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// Renders a conversation: text::ChatTemplate::render. @throws text::TemplateError, which becomes that line's 400.
using RenderChat = std::function<std::string(const nlohmann::ordered_json& variables, std::int64_t now_unix)>;

/// What turns a parsed line into requests for the engine.
struct PromptContext {
  const text::Tokenizer& tokenizer;
  const RenderChat& render_chat;   // empty: chat is refused
  std::int64_t template_time = 0;  // the date that templates see
  std::size_t max_model_len = 0;   // tokens of prompt and answer together
  std::uint64_t job_seed = 0;
};

/// A prompt as an answer repeats it.
struct Echo {
  std::string text;   // as the request gave it, or that of its token ids, without special tokens
  TokenId first = 0;  // token, which has no log-probability
};

/// A line as the engine takes it: one request a prompt, all with n choices. Their ids are the caller's to set.
struct PreparedRequest {
  std::vector<Request> requests;
  std::vector<Echo> echoes;  // one a prompt, where the request wants them
  std::size_t num_choices() const { return requests.size() * requests.front().sampling.n; }
};

/// The seed of a line that brings none: hash(job seed, line number), of 53 bits, so that readers who keep numbers as doubles do not change
/// it.
std::uint64_t line_seed(std::uint64_t job_seed, std::uint64_t line_number);
/// The seed of prompt `index` of a prompt array: the first has the line's own, so that equal prompts of one array are different samples.
std::uint64_t prompt_seed(std::uint64_t seed, std::size_t index);

/// Renders, tokenizes, seeds and clips. Text of a template gets no special tokens added (it spells its own), a raw prompt those of the
/// tokenizer's rules. Absent max_tokens is 16 for completions and what is left of the context for chat; more than is left is clipped.
/// @throws RequestError 400: the template refuses, a prompt has no tokens, or leaves no room for one.
PreparedRequest prepare_request(const ParsedRequest& request, std::uint64_t line_number, const PromptContext& context);

}  // namespace lockstep::engine
