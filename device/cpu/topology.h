#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::device {

/// A core: those of its processors (hyperthreads) that may be used, by the numbers of the operating system.
struct Core {
  std::vector<int> processors;
  std::size_t node = 0;  // memory node, counted from 0
};

/// The cores that this thread may run on, those of a memory node side by side; processors outside its affinity mask are left out.
/// @throws std::runtime_error if the machine can not be looked at.
std::vector<Core> usable_cores();

/// The cores of a machine that is described in the words of hwloc ("pack:2 [numa] core:4 pu:2"), for tests.
/// @throws std::runtime_error for any other words.
std::vector<Core> cores_of_machine(const std::string& synthetic);

}  // namespace lockstep::device
