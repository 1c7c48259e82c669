#pragma once

#include <cstdint>
#include <span>

namespace lockstep::engine {

/// What a sampled token depends on besides logits and parameters.
struct SamplingContext {
  std::span<const std::int32_t> prompt;     // history of the repetition penalty and of no_repeat_ngram_size: prompt and generated
  std::span<const std::int32_t> generated;  // history of the presence and frequency penalties
  std::uint32_t choice = 0;                 // index of the choice, 0 .. n - 1
  std::uint64_t position = 0;               // of the new token in its sequence, the first prompt token is 0
  std::span<const std::int32_t> end_ids{};  // tokens that end this answer: masked before min_tokens
};

}  // namespace lockstep::engine
