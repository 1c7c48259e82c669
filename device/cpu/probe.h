#pragma once

#include <cstddef>
#include <vector>

#include "device/cpu/isa.h"

namespace lockstep::device {

/// The memory bandwidth that this machine gives right now: reads `bytes` of huge-page memory with every thread, several times, for
/// `seconds` in all. The roofline that a decode step is held against; measure it in the same run. Takes `bytes` of memory meanwhile, which
/// should be well above the caches.
/// @param processors where its threads may run, but for the calling one, which stays where it is; empty: where that one may.
/// @return bytes a second, the best of the runs.
double measure_read_bandwidth(std::size_t num_threads, std::size_t bytes = std::size_t{256} << 20, double seconds = 0.5,
                              const std::vector<int>& processors = {});

/// What one thread can do at most with the instructions of a level, both in operations a second (a multiply-add is two): fused
/// multiply-adds of floats, and products of unsigned numbers below 16 with int8 that add up. The best of a few short runs.
struct PeakRates {
  double floats = 0;
  double integers = 0;
};
PeakRates measure_peak_rates(Isa isa);

}  // namespace lockstep::device
