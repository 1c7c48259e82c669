#pragma once

#include <mutex>
#include <string>
#include <string_view>

namespace lockstep::launcher {

/// The end of standard error that people look at: whole lines, each written by one write(), and, on a terminal, one bar that stays below
/// them. Any thread may call.
class Terminal {
 public:
  /// `descriptor` is not owned. A bar is shown only if it is a terminal.
  explicit Terminal(int descriptor);

  bool interactive() const { return interactive_; }
  int columns() const;

  void write_line(std::string_view line);
  /// Replaces the bar. Nothing happens where there is no terminal.
  void show_bar(std::string bar);
  void clear_bar() { show_bar(""); }

 private:
  void write(std::string_view text) const;

  const int descriptor_;
  const bool interactive_;
  std::mutex mutex_;
  std::string bar_;
};

}  // namespace lockstep::launcher
