#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/runtime/request.h"

namespace lockstep::engine {

/// A piece of a text that is run by itself: tokens [begin, end), of which those from `first_scored` on are scored here.
struct ScoreWindow {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t first_scored = 0;  // of the text; above `begin`, since nothing is known of a first token
  bool operator==(const ScoreWindow&) const = default;
};

/// Windows of `window` tokens that begin every `stride` tokens, until one reaches the end. A token is scored in the first window that has a
/// token before it, so each is scored once, but for the first of the text and, with stride == window, of each window.
/// @throws std::invalid_argument if the window has fewer than 2 tokens, or the stride is 0 or more than the window.
std::vector<ScoreWindow> score_windows(std::size_t num_tokens, std::size_t window, std::size_t stride);

/// The windows of a rolling log-likelihood: each token but the first is scored once, `max_scored` a window, behind one token of context;
/// the last window begins early enough to be as long as the others.
std::vector<ScoreWindow> rolling_windows(std::size_t num_tokens, std::size_t max_scored);

/// What scores a window of a text, and generates nothing.
Request window_request(std::span<const TokenId> tokens, const ScoreWindow& window);

}  // namespace lockstep::engine
