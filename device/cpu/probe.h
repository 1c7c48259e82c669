#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::device {

/// The memory bandwidth that this machine gives right now: reads `bytes` of huge-page memory with every thread, several times, for
/// `seconds` in all. The roofline that a decode step is held against; measure it in the same run. Takes `bytes` of memory meanwhile, which
/// should be well above the caches.
/// @param processors where its threads may run, but for the calling one, which stays where it is; empty: where that one may.
/// @return bytes a second, the best of the runs.
double measure_read_bandwidth(std::size_t num_threads, std::size_t bytes = std::size_t{256} << 20, double seconds = 0.5,
                              const std::vector<int>& processors = {});

}  // namespace lockstep::device
