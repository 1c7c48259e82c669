#pragma once

#include <array>
#include <cstddef>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/mpirun.h"
#include "launcher/terminal.h"

namespace lockstep::launcher {

/// What the command and the ranks write to their standard error: whole lines go to the terminal, mpirun's own announcements are kept.
class CommandErrors {
 public:
  CommandErrors(boost::asio::io_context& context, Terminal& terminal) : pipe_(context), terminal_(terminal) {}

  /// @param pipe read end; closed with this.
  void start(int pipe);
  /// What the pipe still holds when everyone is gone.
  void flush();
  const ChatterFilter& said() const { return filter_; }

 private:
  static constexpr std::size_t kMaxLine = 1 << 16;

  void read();
  void show_line(std::string line);

  boost::asio::posix::stream_descriptor pipe_;
  Terminal& terminal_;
  std::array<char, 4096> buffer_{};
  std::string text_;  // no line end yet
  ChatterFilter filter_;
};

}  // namespace lockstep::launcher
