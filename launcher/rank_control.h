#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "launcher/progress.h"

namespace lockstep::launcher {

/// A rank's tie to whoever watches it: a thread of its own that takes signals, tells the launcher where the rank stands and how far the job
/// is, and ends the process when the launcher dies or says so. Without a launcher it handles signals all the same, and shows the progress
/// itself if it is given a terminal.
///
/// The first SIGINT or SIGTERM, or the launcher's word, sets stop_signal(): whoever drives the job polls it and winds down. The second
/// signal ends the process.
class RankControl {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string socket_path;       // empty: no launcher
    Terminal* terminal = nullptr;  // shows the progress there; must outlive this object
  };

  /// Starts the thread. Signals are taken from here on.
  /// @throws std::runtime_error if there is no launcher at the path.
  explicit RankControl(const Options& options);
  /// Without finish(): the launcher takes this for a death.
  ~RankControl();
  RankControl(const RankControl&) = delete;
  RankControl& operator=(const RankControl&) = delete;

  /// 0, or the signal on which to stop: finish what runs, write it, and exit with 128 + signal.
  int stop_signal() const noexcept;
  /// True from then on: the same, for who polls a flag.
  const std::atomic<bool>& stop_requested() const noexcept;

  /// Cheap: no lock, no system call.
  void set_position(const comm::Position& position) noexcept;
  /// As a position of step 0.
  void set_phase(std::string_view phase) noexcept;
  void set_progress(const Progress& progress);

  /// What to call, from the control thread, when the launcher is gone or ends the job: it should make the rank's collective calls throw.
  /// The process is ended kExitGrace later if it is still there. An empty function takes it back.
  void on_abort(std::function<void(std::string_view reason)> abort);
  static constexpr std::chrono::milliseconds kExitGrace{700};
  static constexpr std::chrono::milliseconds kSameSignal{300};  // mpirun sends each twice

  /// Tells the launcher the exit code, takes the progress bar away, and ends the thread. To be called once, right before the process exits.
  void finish(int exit_code);

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace lockstep::launcher
