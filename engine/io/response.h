#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/prompt_builder.h"
#include "engine/io/request_parser.h"
#include "engine/runtime/request.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// Which request line an answer belongs to. It stands in the answer's `id`, so that the journal needs no framing of its own.
struct AnswerKey {
  std::uint64_t line_number = 0;
  std::uint64_t fingerprint = 0;  // of the request line's text
  bool operator==(const AnswerKey&) const = default;
};

/// A finished line of the output file, without its '\n'. It holds no U+2028, U+2029 or U+0085 either (they are escaped), for readers that
/// split there.
struct Answer {
  std::string line;
  bool ok = false;  // status 200
};

/// What all answers of a job have in common.
struct AnswerContext {
  const text::Tokenizer& tokenizer;
  std::int64_t created = 0;  // Unix seconds
  std::string model;         // of requests that name none
  std::string system_fingerprint;
};

/// What is needed of a request to answer it.
struct AnswerRequest {
  AnswerKey key;
  std::string custom_id;
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;                     // as the request named it
  std::optional<std::int64_t> seed;      // as the request gave it
  std::vector<std::uint64_t> seeds;      // that were used, one a prompt
  std::uint32_t choices_per_prompt = 1;  // n
  bool logprobs = false;
  std::vector<Echo> echoes{};  // one a prompt, where the answer repeats it
  bool beam_search = false;
};

/// The answer to a request whose prompts are all done, in prompt order: status 200 in OpenAI's shape, or a failure if the engine could not
/// finish a choice. It is a function of its arguments alone: no clock, no counter. Logits are -9999 where they are infinite, as OpenAI has
/// it.
Answer completed_answer(const AnswerRequest& request, std::span<const Completion> completions, const AnswerContext& context);
/// A line that was refused: its status and error body in `response`.
Answer refused_answer(const AnswerKey& key, const std::string& custom_id, const RequestError& error);
/// What is not the request's fault: `response` is null, and the top-level `error` says why.
Answer failed_answer(const AnswerKey& key, const std::string& custom_id, const std::string& code, const std::string& message);

/// Whose answer a line is, read from its start; nothing if it is none of ours.
std::optional<AnswerKey> answer_key(std::string_view line);
/// Whether a line is a whole answer, and if so whether it has status 200.
std::optional<bool> answer_status(std::string_view line);

}  // namespace lockstep::engine
