#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/io/request_error.h"
#include "engine/runtime/request.h"
#include "engine/score/windows.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// What a line of a score file is read with.
struct ScoreContext {
  const text::Tokenizer* tokenizer = nullptr;  // null: lines of text are refused, those of token ids are not
  std::size_t vocab_size = 0;
  std::size_t max_model_len = 0;
  bool add_special = true;  // BOS in front of contexts, where the tokenizer's rules add it
};

/// One line of a score file, good or bad (docs/score.md).
struct ScoreRequest {
  nlohmann::ordered_json id;          // the line's, or "line-N"
  nlohmann::ordered_json metadata;    // handed on; null if absent
  std::optional<RequestError> error;  // if present, nothing below is to be used
  bool rolling = false;               // {"text"}: log-likelihood of all of it
  bool token_logprobs = false;        // those of each token are wanted too
  std::vector<TokenId> tokens;
  std::vector<ScoreWindow> windows;  // of `tokens`; each runs by itself
  std::size_t num_cut = 0;           // tokens of the context's front that the model has no room for
  std::size_t num_bytes = 0;         // rolling: of the text, where it was one
};

/// Reads {"context", "continuation"} or {"text"}, text or token ids, with "id", "metadata" and "token_logprobs". Never throws for what the
/// line holds.
ScoreRequest parse_score_line(std::string_view line, std::uint64_t line_number, const ScoreContext& context);

/// The answer's line, without its '\n'.
/// @param scores  [windows], their Completion::prompt_logprobs
std::string score_line(const ScoreRequest& request, const std::vector<std::vector<TokenLogprob>>& scores);
/// A line that was refused, or that the model failed at.
std::string score_error_line(const ScoreRequest& request, const RequestError& error);

}  // namespace lockstep::engine
