#include "launcher/rank_control.h"

#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <boost/asio.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "launcher/control_protocol.h"
#include "launcher/position_board.h"

namespace lockstep::launcher {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kReportInterval{150};

}  // namespace

class RankControl::Thread {
 public:
  explicit Thread(const Options& options)
      : options_(options), signals_(context_, SIGINT, SIGTERM), report_timer_(context_), exit_timer_(context_), socket_(context_) {
    if (options.terminal != nullptr) display_.emplace(*options.terminal);
    if (!options.socket_path.empty()) connect();
    wait_for_signal();
    report();
    thread_ = std::thread([this] { context_.run(); });
  }

  ~Thread() {
    if (!thread_.joinable()) return;
    context_.stop();
    thread_.join();
  }

  void finish(int exit_code) {
    asio::post(context_, [this, exit_code] {
      finished_ = true;
      if (display_) {
        if (const auto progress = take_progress()) display_->update(*progress, ProgressDisplay::Clock::now());
        display_->finish(ProgressDisplay::Clock::now());
      }
      send_progress();
      send(control::Bye{exit_code});
      context_.stop();
    });
    thread_.join();
  }

  void set_progress(const Progress& progress) {
    const std::lock_guard lock(mutex_);
    progress_ = progress;
  }

  void set_abort(std::function<void(std::string_view)> abort) {
    const std::lock_guard lock(mutex_);
    abort_ = std::move(abort);
  }

  std::atomic<int> stop_signal{0};
  std::atomic<bool> stop_requested{false};
  PositionBoard board;

 private:
  void connect() {
    error_code error;
    socket_.connect(asio::local::stream_protocol::endpoint(options_.socket_path), error);
    if (error) throw std::runtime_error(fmt::format("control socket {}: {}", options_.socket_path, error.message()));
    connected_ = true;
    send(control::Hello{options_.rank, options_.size});
    read();
  }

  void send(const control::RankMessage& message) {
    if (!connected_) return;
    error_code error;
    asio::write(socket_, asio::buffer(control::encode(message)), error);
    if (error) end_process("the launcher is gone");
  }

  void read() {
    asio::async_read_until(socket_, asio::dynamic_buffer(inbox_, control::kMaxLine), '\n', [this](error_code error, std::size_t length) {
      if (error) return end_process("the launcher is gone");
      const std::string line = inbox_.substr(0, length - 1);
      inbox_.erase(0, length);
      try {
        obey(control::parse_launcher_message(line));
      } catch (const std::exception& unknown) {
        return end_process(unknown.what());
      }
      if (!ending_) read();
    });
  }

  void on_signal(int signal) {
    const auto now = std::chrono::steady_clock::now();
    if (!stop_requested) {
      first_signal_ = now;
      request_stop(signal);
    } else if (now - first_signal_ > kSameSignal) {
      _exit(128 + signal);
    }
  }

  void request_stop(int signal) {
    stop_signal = signal;
    stop_requested = true;
  }

  void obey(const control::LauncherMessage& message) {
    if (const auto* stop = std::get_if<control::Stop>(&message)) request_stop(stop->signal);
    if (const auto* kill = std::get_if<control::Kill>(&message)) end_process(kill->reason);
  }

  void wait_for_signal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      if (options_.socket_path.empty()) on_signal(signal);
      wait_for_signal();
    });
  }

  void report() {
    const comm::Position position = board.get();
    send(control::At{position.step, position.node});
    send_progress();
    report_timer_.expires_after(kReportInterval);
    report_timer_.async_wait([this](error_code error) {
      if (!error) report();
    });
  }

  void send_progress() {
    const std::optional<Progress> progress = take_progress();
    if (!progress) return;
    if (display_) display_->update(*progress, ProgressDisplay::Clock::now());
    if (last_sent_ == progress) return;
    last_sent_ = progress;
    send(*progress);
  }

  std::optional<Progress> take_progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

  /// The job is over for this rank: its collective calls are made to throw, and if that does not end it in time, this does.
  void end_process(std::string_view reason) {
    if (finished_ || ending_) return;
    ending_ = true;
    connected_ = false;
    {
      const std::lock_guard lock(mutex_);  // held, so that what abort_ uses is not taken away meanwhile
      if (abort_) abort_(reason);
    }
    exit_timer_.expires_after(kExitGrace);
    exit_timer_.async_wait([](error_code) { _exit(1); });
  }

  const Options options_;
  asio::io_context context_{1};
  asio::signal_set signals_;
  asio::steady_timer report_timer_;
  asio::steady_timer exit_timer_;
  asio::local::stream_protocol::socket socket_;
  std::string inbox_;
  std::chrono::steady_clock::time_point first_signal_;
  bool connected_ = false;
  bool finished_ = false;
  bool ending_ = false;
  std::optional<ProgressDisplay> display_;
  std::optional<Progress> last_sent_;
  std::mutex mutex_;
  std::optional<Progress> progress_;             // guarded by mutex_
  std::function<void(std::string_view)> abort_;  // guarded by mutex_
  std::thread thread_;
};

RankControl::RankControl(const Options& options) : thread_(std::make_unique<Thread>(options)) {}
RankControl::~RankControl() = default;

int RankControl::stop_signal() const noexcept { return thread_->stop_signal.load(std::memory_order_relaxed); }

const std::atomic<bool>& RankControl::stop_requested() const noexcept { return thread_->stop_requested; }

void RankControl::set_position(const comm::Position& position) noexcept { thread_->board.set(position); }

void RankControl::set_phase(std::string_view phase) noexcept {
  comm::Position position;
  std::memcpy(position.node, phase.data(), std::min(phase.size(), sizeof position.node - 1));
  set_position(position);
}

void RankControl::set_progress(const Progress& progress) { thread_->set_progress(progress); }

void RankControl::on_abort(std::function<void(std::string_view)> abort) { thread_->set_abort(std::move(abort)); }

void RankControl::finish(int exit_code) { thread_->finish(exit_code); }

}  // namespace lockstep::launcher
