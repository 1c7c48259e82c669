// The only file that knows hwloc.
#include "device/cpu/topology.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include <hwloc.h>

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

}  // namespace lockstep::device
