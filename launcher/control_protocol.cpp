#include "launcher/control_protocol.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include <fmt/format.h>

namespace lockstep::launcher::control {
namespace {

/// Texts stay on their line and within its length.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kMaxLine / 2));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

class Words {
 public:
  explicit Words(std::string_view line) : line_(line), rest_(line) {}

  std::string_view word() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return found;
  }
  template <class Number>
  Number number() {
    const std::string_view text = word();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse();
    return value;
  }
  std::string rest() { return std::string(rest_); }
  [[noreturn]] void refuse() const { throw std::runtime_error(fmt::format("control socket: '{}' is no message", one_line(line_))); }

 private:
  std::string_view line_;
  std::string_view rest_;
};

struct Encoder {
  std::string operator()(const Hello& m) const { return fmt::format("hello {} {}\n", m.rank, m.size); }
  std::string operator()(const At& m) const { return fmt::format("at {} {}\n", m.step, one_line(m.name)); }
  std::string operator()(const Progress& m) const {
    return fmt::format("progress {} {} {} {}\n", m.done, m.total, m.prompt_tokens, m.generated_tokens);
  }
  std::string operator()(const Bye& m) const { return fmt::format("bye {}\n", m.exit_code); }
  std::string operator()(const Stop& m) const { return fmt::format("stop {}\n", m.signal); }
  std::string operator()(const Kill& m) const { return fmt::format("kill {}\n", one_line(m.reason)); }
};

}  // namespace

std::string encode(const RankMessage& message) { return std::visit(Encoder{}, message); }
std::string encode(const LauncherMessage& message) { return std::visit(Encoder{}, message); }

RankMessage parse_rank_message(std::string_view line) {
  Words words(line);
  const std::string_view kind = words.word();
  if (kind == "hello") {
    const int rank = words.number<int>();
    return Hello{rank, words.number<int>()};
  }
  if (kind == "at") {
    const auto step = words.number<std::uint64_t>();
    return At{step, one_line(words.rest())};
  }
  if (kind == "progress") {
    Progress progress;
    for (std::uint64_t* field : {&progress.done, &progress.total, &progress.prompt_tokens, &progress.generated_tokens})
      *field = words.number<std::uint64_t>();
    return progress;
  }
  if (kind == "bye") return Bye{words.number<int>()};
  words.refuse();
}

LauncherMessage parse_launcher_message(std::string_view line) {
  Words words(line);
  const std::string_view kind = words.word();
  if (kind == "stop") return Stop{words.number<int>()};
  if (kind == "kill") return Kill{words.rest()};
  words.refuse();
}

}  // namespace lockstep::launcher::control
