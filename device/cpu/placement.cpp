#include "device/cpu/placement.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include <hwloc.h>
#include <sched.h>

namespace lockstep::device {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

/// An empty `synthetic` means this machine.
Topology load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw std::runtime_error("hwloc can not be started");
  Topology topology(raw);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  // How fast memory is seen from where is of no interest, and takes long to find out.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0)
    throw std::runtime_error("hwloc knows no machine '" + synthetic + "'");
  if (hwloc_topology_load(raw) != 0) throw std::runtime_error("hwloc can not look at the processors of this machine");
  return topology;
}

std::size_t node_of(hwloc_topology_t topology, hwloc_const_bitmap_t processors) {
  const int nodes = std::max(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE), 0);
  for (int node = 0; node < nodes; ++node) {
    const hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(node));
    if (hwloc_bitmap_intersects(object->cpuset, processors)) return static_cast<std::size_t>(node);
  }
  return 0;
}

std::vector<Core> cores_within(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  std::vector<Core> cores;
  // A machine may not tell its cores: then each processor is one.
  const auto type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t object = hwloc_get_obj_by_type(topology, type, static_cast<unsigned>(i));
    Core core;
    for (int id = hwloc_bitmap_first(object->cpuset); id >= 0; id = hwloc_bitmap_next(object->cpuset, id)) {
      if (allowed == nullptr || hwloc_bitmap_isset(allowed, static_cast<unsigned>(id))) core.processors.push_back(id);
    }
    core.node = node_of(topology, object->cpuset);
    if (!core.processors.empty()) cores.push_back(std::move(core));
  }
  std::stable_sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) { return a.node < b.node; });
  return cores;
}

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

std::vector<Core> usable_cores() {
  const Topology topology = load("");
  const Bitmap allowed(hwloc_bitmap_alloc());
  const bool known = allowed && hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_THREAD) == 0;
  std::vector<Core> cores = cores_within(topology.get(), known ? allowed.get() : nullptr);
  if (cores.empty()) throw std::runtime_error("hwloc finds no processor that may be used");
  return cores;
}

std::vector<Core> cores_of_machine(const std::string& synthetic) { return cores_within(load(synthetic).get(), nullptr); }

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
