#include "comm/measure.h"

#include <algorithm>
#include <chrono>

namespace lockstep::comm {
namespace {

constexpr double kTooSlow = 0.25;  // seconds of a call
constexpr double kBudget = 20e-3;  // seconds for the calls of one size
constexpr double kMostCalls = 100;

/// A range splits after the largest power of two below its size.
void add_range(TreeSum& tree, std::uint32_t begin, std::uint32_t end) {
  if (end - begin < 2) return;
  std::uint32_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  add_range(tree, begin, begin + left);
  add_range(tree, begin + left, end);
  tree.merges.push_back({begin, begin + left});
}

double slowest(Communicator& host, double seconds) {
  std::vector<double> all(static_cast<std::size_t>(host.size()));
  const std::vector<std::size_t> bytes(all.size(), sizeof seconds);
  host.all_gather(std::as_bytes(std::span(&seconds, 1)), std::as_writable_bytes(std::span(all)), bytes);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

TreeSum one_root_each(int ranks) {
  TreeSum tree;
  tree.roots_per_rank.assign(static_cast<std::size_t>(ranks), 1);
  add_range(tree, 0, static_cast<std::uint32_t>(ranks));
  return tree;
}

std::vector<double> measure_sizes(Communicator& host, std::span<const std::size_t> sizes, const TimeCalls& time_calls) {
  std::vector<double> seconds(sizes.size(), 0.0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto time = [&](int calls) {
      host.barrier();
      return slowest(host, time_calls(sizes[i] / sizeof(float), calls) / calls);
    };
    time(1);  // what happens at first use is not counted
    seconds[i] = std::max(1e-9, time(1));
    if (seconds[i] >= kTooSlow) break;
    const int calls = static_cast<int>(std::clamp(kBudget / seconds[i], 1.0, kMostCalls));
    for (int repetition = 0; repetition < 2; ++repetition) seconds[i] = std::min(seconds[i], time(calls));
  }
  return seconds;
}

TransportTimes measure_transport(Communicator& communicator, const std::vector<std::size_t>& sizes) {
  const TreeSum tree = one_root_each(communicator.size());
  std::vector<float> values(sizes.back() / sizeof(float), 0.0f);  // sums of zeros stay zeros, whatever the number of calls
  const auto time_calls = [&](std::size_t count, int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) communicator.all_reduce(tree, values.data(), count);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  return {.sizes = sizes,
          .transports = {std::string(communicator.name())},
          .seconds = {measure_sizes(communicator, sizes, time_calls)},
          .table = {}};
}

}  // namespace lockstep::comm
