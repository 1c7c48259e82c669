#include "device/cpu/placement.h"

#include <algorithm>

#include <sched.h>

namespace lockstep::device {
namespace {

struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

Range part_of(Range whole, std::size_t part, std::size_t parts) {
  return {whole.begin + whole.size() * part / parts, whole.begin + whole.size() * (part + 1) / parts};
}

/// The cores of each memory node.
std::vector<Range> nodes_of(const std::vector<Core>& cores) {
  std::vector<Range> nodes;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (nodes.empty() || cores[i].node != cores[i - 1].node) nodes.push_back({i, i});
    nodes.back().end = i + 1;
  }
  return nodes;
}

/// @pre no more ranks than cores.
Range cores_of_rank(const std::vector<Core>& cores, std::size_t rank, std::size_t num_ranks) {
  const std::vector<Range> nodes = nodes_of(cores);
  if (num_ranks <= nodes.size()) {
    const Range own = part_of({0, nodes.size()}, rank, num_ranks);
    return {nodes[own.begin].begin, nodes[own.end - 1].end};
  }
  // A rank belongs to the node in which the middle of an even share lies.
  const auto is_of = [&](std::size_t r, const Range& node) {
    const std::size_t middle = cores.size() * (2 * r + 1), unit = 2 * num_ranks;
    return middle >= node.begin * unit && middle < node.end * unit;
  };
  for (const Range& node : nodes) {
    std::size_t before = 0, all = 0;
    for (std::size_t r = 0; r < num_ranks; ++r) {
      if (!is_of(r, node)) continue;
      before += r < rank ? 1 : 0;
      ++all;
    }
    if (is_of(rank, node)) return part_of(node, before, all);
  }
  return {0, cores.size()};
}

std::vector<int> processors_of(const std::vector<Core>& cores, Range range) {
  std::vector<int> processors;
  for (std::size_t i = range.begin; i < range.end; ++i)
    processors.insert(processors.end(), cores[i].processors.begin(), cores[i].processors.end());
  return processors;
}

/// Where thread `thread` of `threads` may run within the cores of its rank.
std::vector<int> processors_of_thread(const std::vector<Core>& cores, Range own, std::size_t thread, std::size_t threads) {
  if (threads == own.size()) return cores[own.begin + thread].processors;
  if (threads > own.size()) {  // first one a core, then the second hyperthread of each
    const Core& core = cores[own.begin + thread % own.size()];
    const std::size_t hyperthread = thread / own.size();
    if (hyperthread < core.processors.size() && threads <= processors_of(cores, own).size()) return {core.processors[hyperthread]};
  }
  return processors_of(cores, own);
}

}  // namespace

Placement place_rank(const std::vector<Core>& cores, const PlacementRequest& request) {
  const std::vector<int> all = processors_of(cores, {0, cores.size()});
  const std::size_t ranks = std::max<std::size_t>(1, request.num_ranks), rank = std::min(request.rank, ranks - 1);
  Placement placement;
  const std::size_t given = request.quota / ranks;
  const auto take_threads = [&](std::size_t processors, std::size_t at_best) {
    placement.num_threads =
        request.threads > 0 ? std::min(request.threads, processors) : std::max<std::size_t>(1, std::min(at_best, given));
    placement.own_processors = ranks <= all.size() && placement.num_threads <= given;
  };
  if (ranks > all.size()) {
    take_threads(1, 1);
    return placement;
  }
  if (ranks > cores.size()) {
    const Range own = part_of({0, all.size()}, rank, ranks);
    take_threads(own.size(), own.size());
    placement.processors.assign(placement.num_threads,
                                {all.begin() + static_cast<std::ptrdiff_t>(own.begin), all.begin() + static_cast<std::ptrdiff_t>(own.end)});
    return placement;
  }
  const Range own = cores_of_rank(cores, rank, ranks);
  take_threads(processors_of(cores, own).size(), own.size());
  if (ranks == 1 && placement.num_threads != own.size()) return placement;  // free on all of them: no need to bind
  for (std::size_t thread = 0; thread < placement.num_threads; ++thread)
    placement.processors.push_back(processors_of_thread(cores, own, thread, placement.num_threads));
  return placement;
}

void bind_this_thread(const std::vector<int>& processors) noexcept {
  const int most = processors.empty() ? 0 : *std::max_element(processors.begin(), processors.end());
  cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(most) + 1);
  if (set == nullptr) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int processor : processors) CPU_SET_S(static_cast<std::size_t>(processor), bytes, set);
  if (!processors.empty()) sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

}  // namespace lockstep::device
