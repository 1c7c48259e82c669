// Plays every part of a job, one process a part:  fake_job launch|mpirun|rank BEHAVIOUR NUM_RANKS TOKEN [RANK]
// TOKEN is only there to be found in the process list. BEHAVIOUR is a word, and for some ":R", the rank that it is about.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "launcher/child_process.h"
#include "launcher/control_protocol.h"
#include "launcher/log.h"
#include "launcher/rank_control.h"
#include "launcher/supervisor.h"

namespace {

using namespace lockstep::launcher;
using std::chrono::milliseconds;

struct Part {
  std::string behaviour;
  int about = -1;
  int num_ranks = 0;
  std::string token;
};

int launch(const std::string& program, const Part& part, const std::string& behaviour) {
  const PrivateFolder folder;
  Terminal terminal(2);
  const auto log = make_logger(std::make_shared<Terminal>(2), std::nullopt, "info");
  SupervisorOptions options;
  options.command = {part.behaviour == "no-mpirun" ? "no-such-program" : program, "mpirun", behaviour, std::to_string(part.num_ranks),
                     part.token};
  options.socket_path = folder.path() + "/control";
  options.num_ranks = part.num_ranks;
  options.collective_timeout = milliseconds(200);
  try {
    return supervise(options, terminal, *log);
  } catch (const std::exception& error) {
    log->error("{}", error.what());
    return 1;
  }
}

/// Like mpirun, it starts the ranks in groups of their own and announces the death of one.
int mpirun(const std::string& program, const Part& part, const std::string& behaviour) {
  static const std::string rule(74, '-');
  if (part.behaviour == "no-slots") {
    std::fprintf(stderr, "%s\nThere are not enough slots available\n%s\n", rule.c_str(), rule.c_str());
    return 213;
  }
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < part.num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      const std::string number = std::to_string(rank);
      const std::string count = std::to_string(part.num_ranks);
      execl(program.c_str(), program.c_str(), "rank", behaviour.c_str(), count.c_str(), part.token.c_str(), number.c_str(), nullptr);
      _exit(127);
    }
    ranks.push_back(pid);
  }
  int exit_code = 0;
  int status = 0;
  std::string announcement;
  for (pid_t pid = 0; (pid = wait(&status)) > 0;) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] != pid || !WIFSIGNALED(status) || exit_code != 0) continue;
      exit_code = 128 + WTERMSIG(status);
      announcement = rule + "\nmpirun noticed that process rank " + std::to_string(rank) + " with PID 0 on node here exited on signal " +
                     std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ").\n" + rule + "\n";
      if (part.behaviour == "die-unseen") kill(ranks.back(), SIGKILL);  // it takes the others down one by one, and tells when all are gone
    }
    if (WIFEXITED(status) && exit_code == 0) exit_code = WEXITSTATUS(status);
  }
  std::fputs(announcement.c_str(), stderr);
  return exit_code;
}

int rank_main(const Part& part, int rank) {
  const char* socket_path = std::getenv(control::kEnvironmentVariable.data());
  if (part.behaviour == "die-unseen" && rank == part.about) std::this_thread::sleep_for(milliseconds(400)), raise(SIGKILL);
  RankControl rank_control({rank, part.num_ranks, socket_path == nullptr ? "" : socket_path, nullptr});
  std::atomic<bool> aborted{false};
  rank_control.on_abort([&](std::string_view) { aborted = true; });
  const bool is_the_one = rank == part.about;
  const bool endless = part.behaviour != "finish" && part.behaviour != "some-lines-bad";
  for (std::uint64_t step = 1; endless || step <= 5; ++step) {
    lockstep::comm::Position position{step, "n07 reduce_add_norm"};
    const bool stalled = part.behaviour == "stall" && step >= (is_the_one ? 3 : 4);
    if (!stalled) rank_control.set_position(position);
    if (rank == 0) rank_control.set_progress({step, 5, step * 10, step * 20});
    std::this_thread::sleep_for(milliseconds(rank == part.about || part.behaviour != "stall" ? 30 : 60));
    if (aborted) {
      rank_control.finish(1);
      return 1;
    }
    if (step == 3 && is_the_one) {
      if (part.behaviour == "die") std::this_thread::sleep_for(milliseconds(400)), raise(SIGKILL);
      if (part.behaviour == "quit") std::this_thread::sleep_for(milliseconds(400)), _exit(0);
      if (part.behaviour == "freeze") raise(SIGSTOP);
      if (part.behaviour == "fail") {
        std::fprintf(stderr, "[rank %d] error: the model file is broken\n", rank);
        rank_control.finish(1);
        return 1;
      }
    }
    if (part.behaviour == "drain" && rank_control.stop_signal() != 0) {
      std::this_thread::sleep_for(milliseconds(100));
      const int exit_code = 128 + rank_control.stop_signal();
      rank_control.finish(exit_code);
      return exit_code;
    }
  }
  const int exit_code = part.behaviour == "some-lines-bad" ? 3 : 0;
  rank_control.finish(exit_code);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string role = argv[1];
  const std::string behaviour = argv[2];
  const std::size_t colon = behaviour.find(':');
  const Part part{behaviour.substr(0, colon), colon == std::string::npos ? -1 : std::atoi(behaviour.c_str() + colon + 1),
                  std::atoi(argv[3]), argv[4]};
  if (role == "launch") return launch(argv[0], part, behaviour);
  if (role == "mpirun") return mpirun(argv[0], part, behaviour);
  return argc > 5 ? rank_main(part, std::atoi(argv[5])) : 2;
}
