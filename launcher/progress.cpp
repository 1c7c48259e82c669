#include "launcher/progress.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::launcher {
namespace {

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::min(seconds, 3.6e8));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

void ProgressDisplay::update(const Progress& progress, Clock::time_point now) {
  if (!first_) {
    first_ = progress;
    first_time_ = last_line_ = now;
  }
  last_ = progress;
  if (terminal_.interactive()) {
    terminal_.show_bar(bar(now));
  } else if (now - last_line_ >= kLineInterval) {
    last_line_ = now;
    terminal_.write_line("lockstep: " + figures(now));
  }
}

void ProgressDisplay::finish(Clock::time_point now) {
  if (!first_) return;
  terminal_.clear_bar();
  terminal_.write_line(
      fmt::format("lockstep: {} in {}", figures(now), clock_text(std::chrono::duration<double>(now - first_time_).count())));
  first_.reset();
}

std::string ProgressDisplay::figures(Clock::time_point now) const {
  std::string text = last_.total > 0 ? fmt::format("{}/{} requests", last_.done, last_.total) : fmt::format("{} requests", last_.done);
  const double seconds = std::chrono::duration<double>(now - first_time_).count();
  if (!first_ || seconds <= 0.0) return text;
  text += fmt::format(", {:.0f} tok/s",
                      static_cast<double>(last_.generated_tokens - std::min(first_->generated_tokens, last_.generated_tokens)) / seconds);
  if (last_.done > first_->done && last_.total > last_.done) {
    const double seconds_each = seconds / static_cast<double>(last_.done - first_->done);
    text += fmt::format(", {} left", clock_text(seconds_each * static_cast<double>(last_.total - last_.done)));
  }
  return text;
}

std::string ProgressDisplay::bar(Clock::time_point now) const {
  const std::string text = figures(now);
  const int width = std::clamp(terminal_.columns() - static_cast<int>(text.size()) - 5, 0, 40);
  if (last_.total == 0 || width < 10) return text.substr(0, static_cast<std::size_t>(std::max(terminal_.columns() - 1, 1)));
  const auto filled = static_cast<int>(static_cast<double>(width) * static_cast<double>(std::min(last_.done, last_.total)) /
                                       static_cast<double>(last_.total));
  return fmt::format("[{:.<{}}] {}", std::string(static_cast<std::size_t>(filled), '#'), width, text);
}

}  // namespace lockstep::launcher
