#pragma once

#include <cstddef>

namespace lockstep::device {

/// The memory bandwidth that this machine gives right now: reads `bytes` of huge-page memory with every thread, several times, for
/// `seconds` in all. The roofline that a decode step is held against; measure it in the same run. Takes `bytes` of memory meanwhile, which
/// should be well above the caches.
/// @return bytes a second, the best of the runs.
double measure_read_bandwidth(std::size_t num_threads, std::size_t bytes = std::size_t{256} << 20, double seconds = 0.5);

}  // namespace lockstep::device
