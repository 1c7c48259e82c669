#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep::launcher {

/// A program started in a process group of its own, so that signals of the terminal do not reach it, and killed (SIGTERM) by the kernel
/// when this process dies.
struct ChildProcess {
  pid_t pid = 0;
  int stderr_pipe = -1;  // read end of its standard error; the caller's to close
};

/// @param command program (looked up in PATH) and arguments.
/// @param environment variables added to this process's own.
/// Standard input is empty, standard output is this process's own. To be called while the process has one thread.
/// @throws std::runtime_error if it can not be started, naming the program.
ChildProcess start_child(const std::vector<std::string>& command, const std::vector<std::pair<std::string, std::string>>& environment);

/// From now on, orphaned descendants become children of this process instead of init's.
void adopt_orphans();

/// Kills every child that this process has, adopted ones included, and reaps them. Waits for at most a second.
void kill_all_children();

/// A folder that only this user can enter, below the temporary folder; removed with all that is in it at the end.
class PrivateFolder {
 public:
  PrivateFolder();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
