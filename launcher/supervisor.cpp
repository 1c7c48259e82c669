#include "launcher/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include <boost/asio.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/child_process.h"
#include "launcher/command_errors.h"
#include "launcher/control_protocol.h"
#include "launcher/progress.h"
#include "launcher/rank_state.h"

namespace lockstep::launcher {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Socket = asio::local::stream_protocol::socket;

namespace {

constexpr std::chrono::milliseconds kWatchInterval{200};
constexpr std::chrono::milliseconds kSettleTime{50};
/// What mpirun says of a death, and its own, are here by then.
constexpr std::chrono::milliseconds kVerdictTime{200};
constexpr std::chrono::seconds kExitDeadline{10};  // for the command to end once every rank has said bye

struct Connection {
  explicit Connection(Socket accepted) : socket(std::move(accepted)) {}
  Socket socket;
  std::string inbox;
  int rank = -1;  // not known before its hello
};

std::string signal_text(int signal) { return fmt::format("signal {}, {}", signal, strsignal(signal)); }

pid_t peer_pid(Socket& socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.pid : 0;
}

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, Terminal& terminal, spdlog::logger& log)
      : options_(options),
        terminal_(terminal),
        log_(log),
        display_(terminal),
        ranks_(static_cast<std::size_t>(options.num_ranks)),
        acceptor_(context_, asio::local::stream_protocol::endpoint(options.socket_path)),
        signals_(context_, SIGINT, SIGTERM, SIGHUP),
        child_signals_(context_, SIGCHLD),
        watch_timer_(context_),
        kill_timer_(context_),
        reap_timer_(context_),
        verdict_timer_(context_),
        errors_(context_, terminal) {}

  int run() {
    fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    adopt_orphans();
    accept();
    wait_for_signal();
    wait_for_child();
    started_ = Clock::now();
    child_ = start_child(options_.command, {{std::string(control::kEnvironmentVariable), options_.socket_path}});
    errors_.start(child_.stderr_pipe);
    watch();
    context_.run();
    kill_all_children();
    errors_.flush();
    display_.finish(Clock::now());
    return report();
  }

 private:
  // --- connections
  // -------------------------------------------------------------------------------------------------------------------------------------

  void accept() {
    acceptor_.async_accept([this](error_code error, Socket socket) {
      if (error) return;
      fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      Connection& connection = connections_.emplace_back(std::move(socket));
      read(connection);
      accept();
    });
  }

  void read(Connection& connection) {
    asio::async_read_until(connection.socket, asio::dynamic_buffer(connection.inbox, control::kMaxLine), '\n',
                           [this, &connection](error_code error, std::size_t length) {
                             if (error) return on_closed(connection);
                             const std::string line = connection.inbox.substr(0, length - 1);
                             connection.inbox.erase(0, length);
                             try {
                               on_message(connection, control::parse_rank_message(line));
                             } catch (const std::runtime_error& unknown) {
                               log_.warn("{}", unknown.what());
                               return on_closed(connection);
                             }
                             read(connection);
                           });
  }

  void on_message(Connection& connection, const control::RankMessage& message) {
    if (const auto* hello = std::get_if<control::Hello>(&message)) return on_hello(connection, *hello);
    if (connection.rank < 0) throw std::runtime_error("control socket: a rank did not say hello first");
    Rank& rank = ranks_[static_cast<std::size_t>(connection.rank)];
    const Clock::time_point now = Clock::now();
    rank.last_heard = now;
    if (const auto* at = std::get_if<control::At>(&message)) {
      if (!(rank.at == *at)) rank.last_moved = now;
      rank.at = *at;
    } else if (const auto* progress = std::get_if<Progress>(&message)) {
      display_.update(*progress, now);
    } else if (const auto* bye = std::get_if<control::Bye>(&message)) {
      on_bye(connection.rank, bye->exit_code);
    }
  }

  void on_hello(Connection& connection, const control::Hello& hello) {
    if (hello.rank < 0 || hello.rank >= options_.num_ranks || hello.size != options_.num_ranks) {
      throw std::runtime_error(
          fmt::format("control socket: rank {} of {} is not of this job of {}", hello.rank, hello.size, options_.num_ranks));
    }
    Rank& rank = ranks_[static_cast<std::size_t>(hello.rank)];
    if (rank.state != Rank::State::kAbsent) throw std::runtime_error(fmt::format("control socket: there are two ranks {}", hello.rank));
    connection.rank = hello.rank;
    rank.state = Rank::State::kRunning;
    rank.pid = peer_pid(connection.socket);
    rank.last_heard = rank.last_moved = Clock::now();
    if (stop_signal_ != 0) send(connection, control::Stop{stop_signal_});
    if (kill_reason_) send(connection, control::Kill{*kill_reason_});
  }

  void on_bye(int number, int exit_code) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    rank.state = Rank::State::kSaidBye;
    rank.exit_code = exit_code;
    last_bye_ = Clock::now();
    if (exit_code == 1 && !suspect_) fail(fmt::format("rank {} failed ({}); its message is above", number, place(rank)));
  }

  void on_closed(Connection& connection) {
    error_code ignored;
    connection.socket.close(ignored);
    if (connection.rank < 0) return;
    Rank& rank = ranks_[static_cast<std::size_t>(connection.rank)];
    if (rank.state == Rank::State::kSaidBye) {
      rank.state = Rank::State::kGone;
      return;
    }
    rank.state = Rank::State::kGone;
    if (suspect_) return;  // the verdict is on its way
    suspect_ = connection.rank;
    verdict_timer_.expires_after(kVerdictTime);
    verdict_timer_.async_wait([this](error_code error) {
      if (!error) judge_death();
    });
  }

  /// A rank went without a word. It need not be the culprit: mpirun, dead or alive, takes all ranks down with the first.
  void judge_death() {
    if (failure_ || killed_by_signal_) return;  // they were told to go
    if (has_verdict_of_its_own()) return;       // mpirun ended it after another rank's orderly exit
    if (child_is_dead()) return;                // it went with the command, which will be named
    // One that never said hello may be the first that died. Only mpirun knows, and it tells when all are gone.
    if (!errors_.said().death() && some_rank_is_absent()) return take_down("a rank died while the job started");
    fail(name_the_dead());
  }

  /// mpirun knows best, where it has said so; else it is the rank that went first.
  std::string name_the_dead() {
    const auto& told = errors_.said().death();
    const bool known = told && told->rank >= 0 && told->rank < options_.num_ranks;
    dead_rank_ = known ? told->rank : suspect_.value_or(0);
    return fmt::format("rank {} died ({})", *dead_rank_, place(ranks_[static_cast<std::size_t>(*dead_rank_)]));
  }

  /// Some rank has ended in order, with a code that says something: bad usage, lines without an answer, a signal.
  bool has_verdict_of_its_own() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.exit_code.value_or(0) > 1; });
  }

  bool some_rank_is_absent() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.state == Rank::State::kAbsent; });
  }

  bool child_is_dead() const {
    siginfo_t info{};
    return child_reaped_ ||
           (waitid(P_PID, static_cast<id_t>(child_.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child_.pid);
  }

  void send(Connection& connection, const control::LauncherMessage& message) {
    error_code ignored;
    if (connection.socket.is_open()) asio::write(connection.socket, asio::buffer(control::encode(message)), ignored);
  }

  void send_all(const control::LauncherMessage& message) {
    for (Connection& connection : connections_) send(connection, message);
  }

  // --- the command
  // -------------------------------------------------------------------------------------------------------------------------------------

  void wait_for_child() {
    child_signals_.async_wait([this](error_code error, int) {
      if (error) return;
      int status = 0;
      for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == child_.pid) return on_child_exit(status);
      }
      wait_for_child();
    });
  }

  /// What ranks said last may still be on its way here, so the verdict waits a moment.
  void on_child_exit(int status) {
    child_reaped_ = true;
    kill_timer_.cancel();
    reap_timer_.expires_after(kSettleTime);
    reap_timer_.async_wait([this, status](error_code error) {
      if (!error) judge_child_exit(status);
    });
  }

  void judge_child_exit(int status) {
    if (!all_said_bye() && !failure_ && !has_verdict_of_its_own()) {
      const bool started = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.state != Rank::State::kAbsent; });
      if ((WIFEXITED(status) || kill_reason_) && (suspect_ || errors_.said().death())) {
        remember_failure(name_the_dead());
        return context_.stop();
      }
      const std::string how = WIFSIGNALED(status) ? signal_text(WTERMSIG(status)) : fmt::format("exit code {}", WEXITSTATUS(status));
      remember_failure(fmt::format("{} {} ({})", options_.command.front(), started ? "died" : "did not start the ranks", how));
      show_chatter_ = true;
    }
    context_.stop();  // run() kills whoever is left: orphans of the command are this process's children
  }

  // --- the end
  // -----------------------------------------------------------------------------------------------------------------------------------------

  bool all_said_bye() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.exit_code.has_value(); });
  }

  /// Keeps the first reason, and where everyone stood at that moment.
  void remember_failure(std::string reason) {
    if (failure_) return;
    failure_ = std::move(reason);
    for (std::size_t i = 0; i < ranks_.size(); ++i) places_ += fmt::format("{}rank {}: {}", i == 0 ? "" : "; ", i, place(ranks_[i]));
  }

  void fail(std::string reason) {
    if (failure_) return;
    remember_failure(std::move(reason));
    take_down(*failure_);
  }

  /// Ranks are told, then killed, then the command is.
  void take_down(std::string reason) {
    if (kill_reason_) return;
    kill_reason_ = std::move(reason);
    send_all(control::Kill{*kill_reason_});
    kill_timer_.expires_after(kAbortGrace);
    kill_timer_.async_wait([this](error_code error) {
      if (!error) kill_ranks();
    });
    reap_timer_.expires_after(kReaperGrace);
    reap_timer_.async_wait([this](error_code error) {
      if (!error) kill_child(SIGKILL);
    });
  }

  void kill_child(int signal) const {
    if (!child_reaped_) kill(child_.pid, signal);
  }

  /// Only ranks whose connection is open: a process id of one that is gone may be another's by now.
  void kill_ranks() {
    for (const Connection& connection : connections_) {
      if (connection.rank < 0 || !connection.socket.is_open()) continue;
      const pid_t pid = ranks_[static_cast<std::size_t>(connection.rank)].pid;
      if (pid > 0) kill(pid, SIGKILL);
    }
  }

  void wait_for_signal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      if (stop_signal_ != 0) {
        killed_by_signal_ = true;
        remember_failure("killed");
        kill_ranks();
        kill_child(SIGTERM);
        reap_timer_.expires_after(std::chrono::milliseconds(300));
        reap_timer_.async_wait([this](error_code cancelled) {
          if (!cancelled) kill_child(SIGKILL);
        });
      } else {
        stop_signal_ = signal == SIGHUP ? SIGTERM : signal;
        log_.info("stopping: what is finished is being written ({} again: stop at once)", signal == SIGINT ? "Ctrl-C" : "the signal");
        send_all(control::Stop{stop_signal_});
      }
      wait_for_signal();
    });
  }

  // --- the watch
  // ---------------------------------------------------------------------------------------------------------------------------------------

  void watch() {
    watch_timer_.expires_after(kWatchInterval);
    watch_timer_.async_wait([this](error_code error) {
      if (error) return;
      if (!kill_reason_) look_for_stalls(Clock::now());
      watch();
    });
  }

  void look_for_stalls(Clock::time_point now) {
    if (const auto stall = stall_of(ranks_, now, started_, options_.collective_timeout)) fail(*stall);
    if (all_said_bye() && now - last_bye_ > kExitDeadline) kill_child(SIGKILL);
  }

  // --- the report
  // --------------------------------------------------------------------------------------------------------------------------------------

  int report() {
    if (killed_by_signal_) {
      log_.error("stopped at once");
      return 128 + stop_signal_;
    }
    if (failure_) {
      if (show_chatter_ && !errors_.said().chatter().empty())
        log_.error("{} said:\n{}", options_.command.front(), errors_.said().chatter());
      const auto& death = errors_.said().death();
      const bool known = death && dead_rank_ == death->rank;
      log_.error("{}{}", *failure_, known ? fmt::format(": {}", signal_text(death->signal)) : "");
      log_.error("where the ranks stood: {}", places_);
      return 1;
    }
    int code = ranks_.front().exit_code.value_or(0);
    for (const Rank& rank : ranks_) code = std::max(code, rank.exit_code.value_or(0));
    return code;
  }

  const SupervisorOptions& options_;
  Terminal& terminal_;
  spdlog::logger& log_;
  ProgressDisplay display_;
  std::vector<Rank> ranks_;
  asio::io_context context_{1};
  asio::local::stream_protocol::acceptor acceptor_;
  std::list<Connection> connections_;
  asio::signal_set signals_;
  asio::signal_set child_signals_;
  asio::steady_timer watch_timer_;
  asio::steady_timer kill_timer_;
  asio::steady_timer reap_timer_;
  asio::steady_timer verdict_timer_;
  CommandErrors errors_;
  ChildProcess child_;
  bool child_reaped_ = false;
  Clock::time_point started_;
  Clock::time_point last_bye_;
  int stop_signal_ = 0;
  bool killed_by_signal_ = false;
  bool show_chatter_ = false;
  std::optional<int> suspect_;  // the first rank that went without a word
  std::optional<int> dead_rank_;
  std::optional<std::string> failure_;      // why the job failed
  std::optional<std::string> kill_reason_;  // what ranks are told since they are being taken down
  std::string places_;
};

}  // namespace

int supervise(const SupervisorOptions& options, Terminal& terminal, spdlog::logger& log) {
  return Supervisor(options, terminal, log).run();
}

}  // namespace lockstep::launcher
