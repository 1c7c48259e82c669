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
inline constexpr const char* kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Cuts text into the words that byte pair encoding works on: a list of steps, each of which cuts the pieces of the one before. Immutable.
class Splitter {
 public:
  struct Step {
    Expression expression;
    SplitBehavior behavior = SplitBehavior::Isolated;
    bool invert = false;                // what does not match counts as the match
    bool cuts = true;                   // false: only what follows, which is done to a piece before it is cut, in this order
    std::string spaces_become = {};     // where not empty, what stands for each space
    std::string prefix = {};            // what a piece gets in front that does not start with it
    bool prefix_only_at_start = false;  // of the whole text
  };

  Splitter() = default;
  explicit Splitter(std::vector<Step> steps) : steps_(std::move(steps)) {}

  /// Memory of one thread, for any number of calls.
  struct Scratch {
    Expression::Scratch expression;
    std::vector<std::string_view> words;  // the result: valid until the next call, and as long as the text
    std::vector<std::string_view> pieces;
    std::vector<Range> matches;
    std::deque<std::string> changed;  // pieces that are no longer parts of the text
  };
  /// `text` is valid UTF-8. No word is empty. `starts_text`: nothing stands before it, no added token either.
  void split(std::string_view text, Scratch& scratch, bool starts_text = true) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lockstep::text
