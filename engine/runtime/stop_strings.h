#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::engine {

/// Looks for stop strings in a text that arrives in pieces, and holds back no more of it than may still become one. How the text is cut
/// into pieces does not matter: the first stop string to be complete ends it; of two that end at the same byte, the longer one.
class StopStrings {
 public:
  /// Empty strings are ignored.
  explicit StopStrings(const std::vector<std::string>& stops);

  /// The text that is certain now to be part of the answer. After a stop string was found there is none.
  std::string append(std::string_view piece);
  /// What was held back; the text is over.
  std::string finish();
  bool found() const { return found_; }

 private:
  /// One stop string as a Knuth-Morris-Pratt automaton, so that a byte costs the same however long and repetitive the strings are.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> border;  // [length]: longest proper beginning of text[0..i] that also ends it
    std::size_t matched = 0;          // bytes of its beginning that the text ends in
    void advance(char byte);
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  bool found_ = false;
};

}  // namespace lockstep::engine
