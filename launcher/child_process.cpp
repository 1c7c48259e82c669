#include "launcher/child_process.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(fmt::format("a pipe can not be made: {}", std::strerror(errno)));
    read_end = ends[0];
    write_end = ends[1];
  }
};

/// The child's side of the fork: only calls that are safe there. Returns if the program can not be run.
void become(pid_t parent, char* const* arguments, int stderr_end) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it died before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int empty = open("/dev/null", O_RDONLY);
  dup2(empty, STDIN_FILENO);
  dup2(stderr_end, STDERR_FILENO);
  execvp(arguments[0], arguments);
}

std::vector<pid_t> children_of_this_thread() {
  std::vector<pid_t> children;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", gettid()));
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

}  // namespace

ChildProcess start_child(const std::vector<std::string>& command, const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const Pipe errors;
  const Pipe exec_result;  // closed by a successful exec, else it carries errno
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    become(parent, arguments.data(), errors.write_end);
    const int reason = errno;
    (void)!write(exec_result.write_end, &reason, sizeof reason);
    _exit(127);
  }
  const int fork_error = errno;
  close(errors.write_end);
  close(exec_result.write_end);
  int reason = pid < 0 ? fork_error : 0;
  if (pid > 0 && read(exec_result.read_end, &reason, sizeof reason) <= 0) reason = 0;
  close(exec_result.read_end);
  if (reason != 0) {
    close(errors.read_end);
    if (pid > 0) waitpid(pid, nullptr, 0);
    throw std::runtime_error(fmt::format("{} can not be started: {}", command.front(), std::strerror(reason)));
  }
  return {pid, errors.read_end};
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void kill_all_children() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < deadline) {
    for (const pid_t child : children_of_this_thread()) kill(child, SIGKILL);
    const pid_t reaped = waitpid(-1, nullptr, WNOHANG);
    if (reaped < 0) return;  // none is left
    if (reaped == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

PrivateFolder::PrivateFolder() : path_((std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr)
    throw std::runtime_error(fmt::format("{}: the folder can not be made: {}", path_, std::strerror(errno)));
}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep::launcher
