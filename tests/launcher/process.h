#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A program that a test starts, with what it writes to standard error. It, and every process whose arguments hold its token, is killed at
/// the end.
class Process {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  /// @param token a text that occurs in the arguments of every process of the job, and in no other's.
  Process(const std::vector<std::string>& command, std::string token) : token_(std::move(token)) {
    log_path_ =
        std::filesystem::temp_directory_path() / ("lockstep-test-" + std::to_string(getpid()) + "-" + std::to_string(++counter_) + ".log");
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int log = open(log_path_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
      dup2(log, STDERR_FILENO);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Process() {
    for (const pid_t pid : processes()) kill(pid, SIGKILL);
    if (!reaped_) waitpid(pid_, nullptr, 0);
    std::filesystem::remove(log_path_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  std::string log() const { return contents(log_path_); }

  /// The exit code (128 + signal for a death by one), or -1 if it is still running after `limit`.
  int wait(milliseconds limit = milliseconds(240'000)) {
    const auto deadline = Clock::now() + limit;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return -1;
      std::this_thread::sleep_for(milliseconds(5));
    }
    reaped_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// Processes of the job that exist, zombies left out, whose arguments hold `argument` too.
  std::vector<pid_t> processes(const std::string& argument = "") const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string command = contents(entry.path() / "cmdline");
      if (command.find(token_) == std::string::npos) continue;
      if (argument.empty() || ('\0' + command).find('\0' + argument + '\0') != std::string::npos) found.push_back(std::stoi(name));
    }
    return found;
  }

  /// The ranks themselves: not the launcher, which has the same arguments, nor mpirun.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    for (const pid_t pid : processes()) {
      if (environment_of(pid).find(kRankVariable) != std::string::npos) found.push_back(pid);
    }
    return found;
  }
  static int rank_of(pid_t pid) {
    const std::string environment = environment_of(pid);
    return std::atoi(environment.c_str() + environment.find(kRankVariable) + kRankVariable.size());
  }

  bool wait_for_processes(std::size_t count, milliseconds limit, const std::string& argument = "") const {
    return wait_until([&] { return processes(argument).size() == count; }, limit);
  }

  template <class Condition>
  static bool wait_until(const Condition& condition, milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

 private:
  static constexpr std::string_view kRankVariable = "OMPI_COMM_WORLD_RANK=";
  static std::string environment_of(pid_t pid) { return contents("/proc/" + std::to_string(pid) + "/environ"); }

  static inline int counter_ = 0;
  std::string token_;
  std::filesystem::path log_path_;
  pid_t pid_ = 0;
  bool reaped_ = false;
};

}  // namespace lockstep::test
