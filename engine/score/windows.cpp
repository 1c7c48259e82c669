#include "engine/score/windows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lockstep::engine {

std::vector<ScoreWindow> score_windows(std::size_t num_tokens, std::size_t window, std::size_t stride) {
  if (window < 2) throw std::invalid_argument("a window of " + std::to_string(window) + " tokens scores nothing: 2 are the least");
  if (stride == 0 || stride > window) {
    throw std::invalid_argument("a stride of " + std::to_string(stride) + " tokens: it must be from 1 to the window's " +
                                std::to_string(window));
  }
  std::vector<ScoreWindow> windows;
  std::size_t num_seen = 0;  // tokens of the windows so far
  for (std::size_t begin = 0; num_seen < num_tokens; begin += stride) {
    const std::size_t end = std::min(begin + window, num_tokens);
    const std::size_t first_scored = std::max(num_seen, begin + 1);
    num_seen = end;
    if (first_scored < end) windows.push_back({begin, end, first_scored});
  }
  return windows;
}

std::vector<ScoreWindow> rolling_windows(std::size_t num_tokens, std::size_t max_scored) {
  if (max_scored == 0) throw std::invalid_argument("a window must have room for a token");
  std::vector<ScoreWindow> windows;
  for (std::size_t first = 1; first < num_tokens; first += max_scored) {
    const std::size_t end = std::min(first + max_scored, num_tokens);
    windows.push_back({end > max_scored ? end - max_scored - 1 : 0, end, first});
  }
  return windows;
}

Request window_request(std::span<const TokenId> tokens, const ScoreWindow& window) {
  Request request;
  const std::span<const TokenId> part = tokens.subspan(window.begin, window.end - window.begin);
  request.prompt.assign(part.begin(), part.end());
  request.first_scored = window.first_scored - window.begin;
  request.sampling.max_tokens = 0;
  return request;
}

}  // namespace lockstep::engine
