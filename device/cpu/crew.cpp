#include "device/cpu/crew.h"

#include <algorithm>

namespace lockstep::device::cpu {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds;

constexpr milliseconds kWindow{20};      // of which a decision is made
constexpr milliseconds kLongWindow{60};  // likewise, while all walk: what is busy for a moment only is waited for
constexpr std::size_t kSteps = 6;        // likewise: a single hiccup decides nothing
constexpr std::size_t kSeldom = 8;       // at most one of so many
constexpr milliseconds kAlone{8};        // that helpers sleep, for a busy process to move to their processors
constexpr milliseconds kLongestPatience{1000};
constexpr milliseconds kCalm{40};  // without helpers missed, for all to walk again

constexpr microseconds kShortestTurn{300}, kUsualTurn{20'000};
constexpr microseconds kNobody{50};  // in which a yield returns if no one else wants the processor
constexpr int kUnwanted = 6;         // such yields in a row: it has gone
constexpr std::chrono::hours kLongestTurn{1};

}  // namespace

Crew::Crew() : patience_(kWindow) {}

void Crew::note(const WalkReport& report) {
  wall_ += std::min(report.wall, 3 * report.computed);
  computed_ += report.computed;
  kept_off_ += std::min(report.kept_off, report.computed);
  parts_ += report.parts;
  missed_ += report.missed;
  ++steps_;
  const bool decides =
      walk_ == Walk::kHalf ? wall_ >= kAlone : steps_ >= kSteps && wall_ >= (walk_ == Walk::kAll ? kLongWindow : patience_);
  if (!decides) return;
  walk_ = decide();
  wall_ = computed_ = kept_off_ = {};
  steps_ = parts_ = missed_ = 0;
}

Walk Crew::decide() {
  switch (walk_) {
    case Walk::kAll:
      if (4 * wall_ < 7 * computed_) return Walk::kAll;
      patience_ = kWindow;
      calm_ = {};
      return Walk::kHalf;  // for a busy process to move to the processors of helpers
    case Walk::kHalf: return Walk::kAsTheyCan;
    case Walk::kAsTheyCan:
      if (kSeldom * kept_off_ > wall_) {
        patience_ = std::min<Time>(kLongestPatience, 2 * patience_);
        return Walk::kHalf;
      }
      patience_ = kWindow;
      calm_ = kSeldom * missed_ < parts_ ? calm_ + wall_ : Time{};
      return calm_ >= kCalm ? Walk::kAll : Walk::kAsTheyCan;
  }
  return Walk::kAll;
}

void Turn::interrupted(Time last, Time now) {
  const Time safe = (last - begin_) * 3 / 4;
  longest_ = longest_ > kUsualTurn ? safe : std::max(safe, longest_ * 7 / 8);  // something short may have come between, once
  longest_ = std::max<Time>(kShortestTurn, longest_);
  begin_ = now;
}

void Turn::yielded(Time from, Time now) {
  unwanted_ = now - from < kNobody ? unwanted_ + 1 : 0;
  if (unwanted_ < kUnwanted) {
    longest_ += longest_ / 256;
  } else if (longest_ > Time{}) {
    longest_ = kLongestTurn;
  }
  begin_ = now;
}

}  // namespace lockstep::device::cpu
