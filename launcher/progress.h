#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/terminal.h"

namespace lockstep::launcher {

/// How far a job is.
struct Progress {
  std::uint64_t done = 0;              // requests answered, those of an earlier run included
  std::uint64_t total = 0;             // 0: not known
  std::uint64_t prompt_tokens = 0;     // computed by this run
  std::uint64_t generated_tokens = 0;  // by this run
  bool operator==(const Progress&) const = default;
};

/// Shows progress on a terminal as a bar, elsewhere as a line every few seconds. The caller gives the time.
class ProgressDisplay {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLineInterval{5};

  explicit ProgressDisplay(Terminal& terminal) : terminal_(terminal) {}

  void update(const Progress& progress, Clock::time_point now);
  /// Takes the bar away; leaves one line with the final figures if there was any progress.
  void finish(Clock::time_point now);

  /// "12/2000 requests, 412 tok/s, 3:21 left"
  std::string figures(Clock::time_point now) const;

 private:
  std::string bar(Clock::time_point now) const;

  Terminal& terminal_;
  std::optional<Progress> first_;
  Progress last_;
  Clock::time_point first_time_{};
  Clock::time_point last_line_{};
};

}  // namespace lockstep::launcher
