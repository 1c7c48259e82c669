#include "launcher/log.h"

#include <mutex>

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>

namespace lockstep::launcher {
namespace {

class TerminalSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  TerminalSink(std::shared_ptr<Terminal> terminal, std::string prefix) : terminal_(std::move(terminal)), prefix_(std::move(prefix)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string prefix = prefix_;
    if (message.level != spdlog::level::info) prefix += std::string(spdlog::level::to_string_view(message.level).data()) + ": ";
    std::string text = prefix;
    for (const char c : std::string_view(message.payload.data(), message.payload.size())) {
      text += c;
      if (c == '\n') text += prefix;  // every line says whose it is
    }
    terminal_->write_line(text);
  }
  void flush_() override {}

 private:
  std::shared_ptr<Terminal> terminal_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<spdlog::logger> make_logger(std::shared_ptr<Terminal> terminal, std::optional<int> rank, const std::string& level) {
  const std::string prefix = rank ? fmt::format("[rank {}] ", *rank) : "lockstep: ";
  auto logger = std::make_shared<spdlog::logger>("lockstep", std::make_shared<TerminalSink>(std::move(terminal), prefix));
  logger->set_level(spdlog::level::from_str(level));
  return logger;
}

}  // namespace lockstep::launcher
