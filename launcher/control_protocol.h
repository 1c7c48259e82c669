#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/progress.h"

namespace lockstep::launcher {

/// What ranks and their launcher tell each other over the control socket: one message a line, words separated by a space.
///
///   rank -> launcher                          launcher -> rank
///   hello RANK SIZE                           stop SIGNAL   finish what runs, then exit with 128 + SIGNAL
///   at STEP NAME                              kill REASON   exit now
///   progress DONE TOTAL PROMPT GENERATED
///   bye CODE
///
/// `at` is the heartbeat too. A connection that closes without a bye is a rank that died; for a rank, a connection that closes is a
/// launcher that died.
namespace control {

constexpr std::size_t kMaxLine = 1024;
constexpr std::string_view kEnvironmentVariable = "LOCKSTEP_CONTROL";  // path of the socket

struct Hello {
  int rank = 0;
  int size = 0;
};
struct At {
  std::uint64_t step = 0;
  std::string name;  // of a phase, or of a node of the graph
  bool operator==(const At&) const = default;
};
struct Bye {
  int exit_code = 0;
};
using RankMessage = std::variant<Hello, At, Progress, Bye>;

struct Stop {
  int signal = 0;
};
struct Kill {
  std::string reason;
};
using LauncherMessage = std::variant<Stop, Kill>;

/// The line, with its end.
std::string encode(const RankMessage& message);
std::string encode(const LauncherMessage& message);

/// @param line without its end. @throws std::runtime_error if it is none of the messages.
RankMessage parse_rank_message(std::string_view line);
LauncherMessage parse_launcher_message(std::string_view line);

}  // namespace control

}  // namespace lockstep::launcher
