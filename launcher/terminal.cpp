#include "launcher/terminal.h"

#include <cerrno>

#include <sys/ioctl.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

}  // namespace

Terminal::Terminal(int descriptor) : descriptor_(descriptor), interactive_(isatty(descriptor) == 1) {}

int Terminal::columns() const {
  winsize size{};
  return ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void Terminal::write_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  std::string text;
  if (!bar_.empty()) text += kClearLine;
  text += line;
  text += '\n';
  text += bar_;
  write(text);
}

void Terminal::show_bar(std::string bar) {
  if (!interactive_) return;
  const std::lock_guard lock(mutex_);
  if (bar == bar_) return;
  bar_ = std::move(bar);
  write(std::string(kClearLine) + bar_);
}

void Terminal::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // nobody reads: there is no one to tell either
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::launcher
