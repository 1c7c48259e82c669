#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/params.h"

namespace lockstep::engine {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;

/// One prompt to continue, as the coordinator takes it: checked, tokenized, with a seed.
struct Request {
  RequestId id = 0;             // the caller's; unique among the requests in flight
  std::vector<TokenId> prompt;  // at least one
  SamplingParams sampling;
  // The log-probabilities of the prompt's tokens from this one on are wanted, with those of the `sampling.logprobs` best beside each. The
  // first token has none. 0: none are. With max_tokens 0 nothing is generated.
  std::size_t first_scored = 0;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kError };

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;                        // natural logarithm, log-softmax of the unprocessed logits
  std::vector<std::pair<TokenId, float>> top;  // best first
  bool is_greedy = false;                      // of a prompt token: it is what greedy sampling would have taken
};

/// One finished choice of a request.
struct Choice {
  std::uint32_t index = 0;
  std::vector<TokenId> tokens;  // generated; an EOS or stop token that ended it is included
  std::string text;             // special tokens skipped, cut before a stop string
  FinishReason finish_reason = FinishReason::kLength;
  std::string error;                   // for kError: why, in one sentence
  std::vector<TokenLogprob> logprobs;  // one a token, if asked for
  float beam_score = 0.0f;             // of a beam search: sum of log-probabilities / length ^ length_penalty
};

/// A finished request: all its choices, by index.
struct Completion {
  RequestId id = 0;
  std::vector<Choice> choices;
  std::size_t prompt_tokens = 0;
  std::size_t cached_tokens = 0;
  std::vector<TokenLogprob> prompt_logprobs;  // of the prompt tokens from Request::first_scored on
};

using OnCompletion = std::function<void(Completion&&)>;

}  // namespace lockstep::engine
