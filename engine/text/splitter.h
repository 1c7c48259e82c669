#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/expression.h"

namespace lockstep::text {

/// What becomes of the matches of a splitting expression.
enum class SplitBehavior { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };

/// GPT-2's expression.
extern const char* const kGpt2Split;

/// Cuts text into the words that byte pair encoding works on: a list of steps, each of which cuts the pieces of the one before. Immutable.
class Splitter {
 public:
  struct Step {
    Expression expression;
    SplitBehavior behavior = SplitBehavior::Isolated;
    bool invert = false;          // what does not match counts as the match
    bool space_in_front = false;  // a piece that does not start with a space gets one, before it is cut
    bool cuts = true;             // false: only space_in_front
  };

  Splitter() = default;
  explicit Splitter(std::vector<Step> steps) : steps_(std::move(steps)) {}

  /// Memory of one thread, for any number of calls.
  struct Scratch {
    Expression::Scratch expression;
    std::vector<std::string_view> words;  // the result: valid until the next call, and as long as the text
    std::vector<std::string_view> pieces;
    std::vector<Range> matches;
    std::deque<std::string> changed;  // pieces with a space in front
  };
  /// `text` is valid UTF-8. No word is empty.
  void split(std::string_view text, Scratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lockstep::text
