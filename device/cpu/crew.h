#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lockstep::device::cpu {

/// How the threads of a pool walk a program of steps. Its shares are as many as the threads; each odd thread is the helper of the even one
/// before it.
enum class Walk : std::uint8_t {
  kAll,        // every thread does its own share, from the first op to the last
  kAsTheyCan,  // helpers come and go at barriers; while one is away, the even thread does its share too
  kHalf,       // helpers sleep
};

/// How a walk went.
struct WalkReport {
  std::chrono::nanoseconds wall{};
  std::chrono::nanoseconds computed{};  // the most of any even thread: neither waiting nor kept off its processor
  std::chrono::nanoseconds kept_off{};  // the most of any even thread: neither waiting nor computing
  std::size_t parts = 0;                // into which barriers cut the program
  std::size_t missed = 0;               // the most of them for which a helper was away
};

/// Decides how steps are walked. Threads that meet a hundred times in a step only get on while all of them have a processor, and next to a
/// busy process that is seldom; so helpers then come and go. No clock in here: it goes by the reports.
class Crew {
 public:
  Crew();
  Walk next() const { return walk_; }
  void note(const WalkReport& report);

 private:
  using Time = std::chrono::nanoseconds;

  Walk decide();

  Walk walk_ = Walk::kAll;
  Time patience_;  // before helpers sleep again
  Time calm_{};    // for so long no helper was missed
  // Since the latest decision:
  Time wall_{}, computed_{}, kept_off_{};
  std::size_t steps_ = 0, parts_ = 0, missed_ = 0;
};

/// How long a thread can count on its processor where another process wants it too: the system gives it to each in turn. Whoever stops just
/// before the end of its turn leaves nothing half done that others wait for.
class Turn {
 public:
  using Time = std::chrono::nanoseconds;  // since any point of time

  /// @param longest as if it had been interrupted after a little more. None: it stops at every opportunity.
  explicit Turn(Time longest = std::chrono::hours(1)) : longest_(longest) {}
  void begin(Time now) { begin_ = now; }
  bool nearly_over(Time now) const { return now - begin_ >= longest_; }
  /// It was taken off the processor behind `last` and is back.
  void interrupted(Time last, Time now);
  /// It gave the processor to whoever wants it at `from`, and is back.
  void yielded(Time from, Time now);

 private:
  Time begin_{};
  Time longest_;
  int unwanted_ = 0;  // latest yields that nobody took
};

}  // namespace lockstep::device::cpu
