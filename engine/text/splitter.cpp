#include "engine/text/splitter.h"

namespace lockstep::text {

namespace {

/// Takes matches and the gaps between them, in order, and hands on the pieces that a behaviour makes of them.
class Cutter {
 public:
  Cutter(std::string_view text, const Splitter::Step& step, std::vector<std::string_view>& pieces)
      : text_(text), step_(step), pieces_(pieces) {}

  void take(Range range, bool is_match) {
    is_match = is_match != step_.invert;
    switch (step_.behavior) {
      case SplitBehavior::Isolated: put(range); break;
      case SplitBehavior::Removed:
        if (!is_match) put(range);
        break;
      case SplitBehavior::Contiguous: take(range, any_ && is_match == was_match_, is_match); break;
      case SplitBehavior::MergedWithPrevious: take(range, any_ && is_match && !was_match_, is_match); break;
      case SplitBehavior::MergedWithNext: take(range, any_ && !is_match && was_match_, is_match); break;
    }
  }
  void finish() {
    if (any_) put(open_);
  }

 private:
  /// `joins`: the range belongs to the piece before it.
  void take(Range range, bool joins, bool is_match) {
    if (joins) {
      open_.end = range.end;
    } else {
      finish();
      open_ = range;
    }
    any_ = true;
    was_match_ = is_match;
  }
  void put(Range range) {
    if (range.size() > 0) pieces_.push_back(text_.substr(range.begin, range.size()));
  }

  std::string_view text_;
  const Splitter::Step& step_;
  std::vector<std::string_view>& pieces_;
  Range open_{0, 0};
  bool any_ = false, was_match_ = false;
};

void cut(std::string_view text, const Splitter::Step& step, Splitter::Scratch& scratch, std::vector<std::string_view>& pieces) {
  scratch.matches.clear();
  step.expression.find_all(text, scratch.expression, scratch.matches);
  Cutter cutter(text, step, pieces);
  std::size_t done = 0;
  for (const Range match : scratch.matches) {
    if (match.begin > done) cutter.take({done, match.begin}, false);
    cutter.take(match, true);
    done = match.end;
  }
  if (done < text.size()) cutter.take({done, text.size()}, false);
  cutter.finish();
}

std::string changed(std::string_view piece, const Splitter::Step& step, bool add_prefix) {
  std::string text;
  if (step.spaces_become.empty()) {
    text = piece;
  } else {
    for (const char byte : piece) {
      if (byte == ' ') {
        text += step.spaces_become;
      } else {
        text += byte;
      }
    }
  }
  if (add_prefix && !text.starts_with(step.prefix)) text.insert(0, step.prefix);
  return text;
}

}  // namespace

void Splitter::split(std::string_view text, Scratch& scratch, bool starts_text) const {
  scratch.changed.clear();
  scratch.words.clear();
  if (!text.empty()) scratch.words.push_back(text);
  const char* start = starts_text ? text.data() : nullptr;  // where a piece lies that the text starts with
  for (const Step& step : steps_) {
    std::swap(scratch.words, scratch.pieces);
    scratch.words.clear();
    for (std::string_view piece : scratch.pieces) {
      const bool at_start = piece.data() == start;
      const bool add_prefix = !step.prefix.empty() && (at_start || !step.prefix_only_at_start);
      if (!step.spaces_become.empty() || (add_prefix && !piece.starts_with(step.prefix))) {
        piece = scratch.changed.emplace_back(changed(piece, step, add_prefix));
        if (at_start) start = piece.data();
      }
      if (step.cuts) {
        cut(piece, step, scratch, scratch.words);
      } else {
        scratch.words.push_back(piece);
      }
    }
  }
}

}  // namespace lockstep::text
