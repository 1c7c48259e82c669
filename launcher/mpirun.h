#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct MpirunOptions {
  std::string mpirun = "mpirun";
  int num_ranks = 1;
  int num_cores = 1;  // that this process may use
  bool root = false;
  std::string temporary_folder;  // for its session files
};

/// The command that runs `program` (with its arguments) on every rank.
std::vector<std::string> mpirun_command(const MpirunOptions& options, const std::vector<std::string>& program);

/// Tells mpirun's own announcements, which stand between two lines of dashes, from the lines that ranks write.
class ChatterFilter {
 public:
  /// Lines to show, in order: usually this one or none.
  std::vector<std::string> take(std::string line);
  /// What mpirun said, for the case that it is the cause.
  const std::string& chatter() const { return chatter_; }

  struct Death {
    int rank = 0;
    int signal = 0;
  };
  /// The rank that mpirun says was ended by a signal.
  const std::optional<Death>& death() const { return death_; }

 private:
  void keep(const std::string& line);

  std::vector<std::string> block_;  // lines since the opening dashes; empty: outside
  std::string chatter_;
  std::optional<Death> death_;
};

}  // namespace lockstep::launcher
