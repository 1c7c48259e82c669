#include "device/cpu/processors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

namespace lockstep::device {
namespace {

std::size_t processors_of_mask() {
  for (std::size_t capacity = 1024; capacity <= (std::size_t{1} << 20);
       capacity *= 4) {  // the kernel may know more processors than cpu_set_t holds
    std::vector<unsigned long> mask(capacity / (8 * sizeof(unsigned long)));
    cpu_set_t* set = reinterpret_cast<cpu_set_t*>(mask.data());
    const std::size_t bytes = mask.size() * sizeof(unsigned long);
    if (sched_getaffinity(0, bytes, set) == 0) return static_cast<std::size_t>(CPU_COUNT_S(bytes, set));
  }
  return std::thread::hardware_concurrency();
}

/// Processors that a quota of `quota` microseconds a `period` is worth, rounded up; `none` where there is no quota.
std::size_t processors_of_quota(double quota, double period, std::size_t none) {
  if (!(quota > 0) || !(period > 0)) return none;
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(std::min(quota / period, 1e6))));
}

/// The smallest quota of the control group and those above it.
std::size_t processors_of_control_group(std::size_t none) {
  std::size_t least = none;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path; version 2 has no controllers
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool second_version = controllers.empty();
    if (!second_version && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string root = second_version ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (second_version) {
        std::string quota;
        double period = 0;
        if (std::ifstream(root + path + "/cpu.max") >> quota >> period && quota != "max") {
          least = std::min(least, processors_of_quota(std::strtod(quota.c_str(), nullptr), period, none));
        }
      } else {
        double quota = 0, period = 0;
        if (std::ifstream(root + path + "/cpu.cfs_quota_us") >> quota && std::ifstream(root + path + "/cpu.cfs_period_us") >> period) {
          least = std::min(least, processors_of_quota(quota, period, none));
        }
      }
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace

std::size_t usable_processors() {
  const std::size_t mask = std::max<std::size_t>(1, processors_of_mask());
  return std::max<std::size_t>(1, std::min(mask, processors_of_control_group(mask)));
}

std::size_t quota_processors() { return processors_of_control_group(static_cast<std::size_t>(-1)); }

}  // namespace lockstep::device
