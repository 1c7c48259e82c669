#include "launcher/rank_state.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace lockstep::launcher {
namespace {

using Clock = Rank::Clock;

constexpr std::chrono::seconds kLeastSilence{3};     // heartbeats come several times a second, but a busy machine may hold one back
constexpr std::chrono::seconds kStartDeadline{120};  // for every rank to say hello

}  // namespace

std::string place(const Rank& rank) {
  if (rank.state == Rank::State::kAbsent) return "not started";
  const std::string name = rank.at.name.empty() ? "start" : rank.at.name;
  return rank.at.step == 0 ? name : fmt::format("step {}, {}", rank.at.step, name);
}

std::optional<std::string> stall_of(std::span<const Rank> ranks, Clock::time_point now, Clock::time_point started,
                                    std::chrono::milliseconds timeout) {
  const auto seconds = [&](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
  const Rank* late = nullptr;
  bool all_running_stand_still = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& rank = ranks[i];
    if (rank.state == Rank::State::kAbsent && now - started > kStartDeadline)
      return fmt::format("rank {} did not start within {} s", i, kStartDeadline.count());
    if (rank.state != Rank::State::kRunning) continue;
    if (now - rank.last_heard > std::max<Clock::duration>(timeout, kLeastSilence))
      return fmt::format("rank {} is stuck: nothing was heard from it for {:.1f} s ({})", i, seconds(rank.last_heard), place(rank));
    // A rank that waits for the others has moved after the one it waits for. Ranks tell of a late peer themselves, so this watch gives
    // them more time.
    if (rank.at.step == 0 || now - rank.last_moved < timeout + kLeastSilence) all_running_stand_still = false;
    if (late == nullptr || std::tie(rank.at.step, rank.last_moved) < std::tie(late->at.step, late->last_moved)) late = &rank;
  }
  if (late == nullptr || !all_running_stand_still) return std::nullopt;
  return fmt::format("rank {} is stuck: it has not moved for {:.1f} s ({})", late - ranks.data(), seconds(late->last_moved), place(*late));
}

}  // namespace lockstep::launcher
