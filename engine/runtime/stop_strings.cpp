#include "engine/runtime/stop_strings.h"

#include <algorithm>
#include <utility>

namespace lockstep::engine {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern{stop, std::vector<std::size_t>(stop.size(), 0), 0};
    for (std::size_t i = 1; i < stop.size(); ++i) {
      std::size_t length = pattern.border[i - 1];
      while (length > 0 && stop[i] != stop[length]) length = pattern.border[length - 1];
      pattern.border[i] = stop[i] == stop[length] ? length + 1 : 0;
    }
    patterns_.push_back(std::move(pattern));
  }
}

void StopStrings::Pattern::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched - 1];
  if (text[matched] == byte) ++matched;
}

std::string StopStrings::append(std::string_view piece) {
  if (found_) return {};
  if (patterns_.empty()) return std::string(piece);
  std::string certain;
  for (const char byte : piece) {
    held_.push_back(byte);
    std::size_t keep = 0;
    std::size_t stop_length = 0;
    for (Pattern& pattern : patterns_) {
      pattern.advance(byte);
      keep = std::max(keep, pattern.matched);
      if (pattern.matched == pattern.text.size()) stop_length = std::max(stop_length, pattern.matched);
    }
    found_ = stop_length > 0;
    if (found_) keep = stop_length;
    certain.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    if (found_) {
      held_.clear();
      break;
    }
  }
  return certain;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace lockstep::engine
