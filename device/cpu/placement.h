#pragma once

#include <cstddef>
#include <vector>

#include "device/cpu/topology.h"

namespace lockstep::device {

/// One of several ranks that share the same cores.
struct PlacementRequest {
  std::size_t rank = 0;
  std::size_t num_ranks = 1;
  std::size_t threads = 0;                           // 0: one a core; more than there are processors would only wait for each other
  std::size_t quota = static_cast<std::size_t>(-1);  // processors' worth of time that all ranks together are given
};

struct Placement {
  std::size_t num_threads = 1;
  std::vector<std::vector<int>> processors;  // [num_threads]: where each may run; empty: not bound
  bool own_processors = false;               // the ranks together have no more threads than processors
};

/// Every rank has cores of its own, as many as the others but for one, of one memory node where there are as many ranks as nodes, else of
/// whole nodes. Only where there are more ranks than cores do two of them share one, on hyperthreads of their own; where there are more
/// than hyperthreads, nothing is bound. Threads are bound one by one if they fill the cores of the rank, and move freely within them if
/// they do not: another job may be busy on some. No rank has more threads than processors.
Placement place_rank(const std::vector<Core>& cores, const PlacementRequest& request);

/// Lets the calling thread run on these processors only. What the system refuses is left as it is: a binding changes no answer.
void bind_this_thread(const std::vector<int>& processors) noexcept;

}  // namespace lockstep::device
