// What people see: log lines, the progress display, and the control protocol behind it.
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/control_protocol.h"
#include "launcher/log.h"
#include "launcher/position_board.h"
#include "launcher/progress.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

/// Collects what goes to a pipe that is no terminal.
class Captured {
 public:
  Captured() { EXPECT_EQ(pipe2(ends_, O_NONBLOCK), 0); }
  ~Captured() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int write_end() const { return ends_[1]; }
  /// What one read() gives: what one or several write()s gave.
  std::string read_all() const {
    std::string text(1 << 16, '\0');
    const ssize_t count = read(ends_[0], text.data(), text.size());
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(Log, EveryLineNamesItsRank) {
  const Captured captured;
  const auto log = make_logger(std::make_shared<Terminal>(captured.write_end()), 2, "info");
  log->warn("a\nb");
  log->info("plain");
  log->debug("not shown");
  EXPECT_EQ(captured.read_all(), "[rank 2] warning: a\n[rank 2] warning: b\n[rank 2] plain\n");
}

TEST(Progress, ShowsSpeedAndTimeLeft) {
  const Captured captured;
  Terminal terminal(captured.write_end());
  ProgressDisplay display(terminal);
  const ProgressDisplay::Clock::time_point start{};
  display.update({.done = 100, .total = 400, .generated_tokens = 1000}, start);
  display.update({.done = 200, .total = 400, .generated_tokens = 5000}, start + std::chrono::seconds(40));
  EXPECT_EQ(captured.read_all(), "lockstep: 200/400 requests, 100 tok/s, 1:20 left\n");
  display.update({.done = 201, .total = 400, .generated_tokens = 5000}, start + std::chrono::seconds(41));
  EXPECT_EQ(captured.read_all(), "") << "one line every few seconds is enough";
  display.finish(start + std::chrono::seconds(80));
  EXPECT_THAT(captured.read_all(), HasSubstr("201/400 requests, 50 tok/s, 2:37 left in 1:20"));
}

TEST(Progress, NothingIsShownOfNothing) {
  const Captured captured;
  Terminal terminal(captured.write_end());
  ProgressDisplay(terminal).finish({});
  EXPECT_EQ(captured.read_all(), "");
}

TEST(ControlProtocol, MessagesSurviveTheWire) {
  using namespace control;
  const auto round_trip = [](const RankMessage& message) {
    const std::string line = encode(message);
    EXPECT_EQ(line.back(), '\n');
    return parse_rank_message(std::string_view(line).substr(0, line.size() - 1));
  };
  EXPECT_EQ(std::get<Hello>(round_trip(Hello{3, 4})).rank, 3);
  EXPECT_EQ(std::get<At>(round_trip(At{41, "n07 reduce_add_norm"})), (At{41, "n07 reduce_add_norm"}));
  EXPECT_EQ(std::get<At>(round_trip(At{0, ""})), (At{0, ""}));
  EXPECT_EQ(std::get<At>(round_trip(At{1, "two\nlines"})).name, "two lines");
  EXPECT_EQ(std::get<Progress>(round_trip(Progress{1, 2, 3, 4})), (Progress{1, 2, 3, 4}));
  EXPECT_EQ(std::get<Bye>(round_trip(Bye{143})).exit_code, 143);
  EXPECT_EQ(std::get<Kill>(parse_launcher_message("kill rank 2 died")).reason, "rank 2 died");
  EXPECT_EQ(std::get<Stop>(parse_launcher_message("stop 15")).signal, 15);
}

TEST(ControlProtocol, RefusesWhatIsNoMessage) {
  for (const char* line : {"", "hello", "hello x 2", "at -1 n", "bye", "bye 1x", "progress 1 2 3", "stop 15", "HELLO 1 2"}) {
    EXPECT_THROW(control::parse_rank_message(line), std::runtime_error) << line;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) {
    std::string line = "progress 1 2 3 4";
    for (int k = 0; k < 4; ++k) line[random() % line.size()] = static_cast<char>(random());
    try {
      control::parse_rank_message(line);
    } catch (const std::runtime_error&) {
    }
  }
}

TEST(PositionBoard, ReadsNeverMixTwoPositions) {
  PositionBoard board;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t step = 1; step <= 20'000; ++step) {
      comm::Position position{step, {}};
      std::snprintf(position.node, sizeof position.node, "%llu", static_cast<unsigned long long>(step));
      board.set(position);
    }
    done = true;
  });
  while (!done) {
    const comm::Position position = board.get();
    if (position.step > 0) {
      EXPECT_EQ(std::to_string(position.step), position.node);
    }
  }
  writer.join();
  EXPECT_EQ(board.get().step, 20'000u);
}

}  // namespace
}  // namespace lockstep::launcher
