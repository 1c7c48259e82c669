#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <cuda_runtime_api.h>

/// What tests set and see of the emulated GPUs (README.md in this folder).
namespace simt {

/// In which order the threads of the resident blocks run between barriers.
enum class Schedule { kForward, kReverse, kRandom, kOneWarpFirst };

/// When the operations of streams run: as soon as they are enqueued; only when the host waits, oldest stream first; the youngest stream
/// first; any stream.
enum class StreamOrder { kEager, kLazy, kLastFirst, kRandom };

/// In which order a graph's nodes are replayed: as captured, or in a random order that respects their dependencies.
enum class GraphOrder { kCaptured, kRandom };

/// Set before the calls that it is to concern, while no kernel runs. The environment (SIMT_*, README.md) gives the initial values.
struct Config {
  Schedule schedule = Schedule::kForward;
  std::uint64_t seed = 1;
  bool shuffle_blocks = false;
  unsigned resident_blocks = 4;  // that interleave; more start only where all of these spin
  StreamOrder stream_order = StreamOrder::kEager;
  GraphOrder graph_order = GraphOrder::kCaptured;
  std::size_t memory_bytes = std::size_t{1} << 30;  // of each device
  int device_count = 8;
  int multiprocessors = 8;
  double watchdog_seconds = 20;  // a wait that long without progress is an error
};

/// Of this process, since the start or the last reset.
struct Counters {
  std::uint64_t launches = 0;  // calls, without those that were captured
  std::uint64_t graph_launches = 0;
  std::map<std::string, std::uint64_t> kernels;  // runs by name, those of graphs, too
  std::uint64_t host_to_device = 0;              // copies, those of graphs, too
  std::uint64_t device_to_host = 0;
  std::uint64_t device_to_device = 0;
  std::uint64_t pageable_copies = 0;   // asynchronous in name only
  std::uint64_t synchronisations = 0;  // waits of the host for a stream, an event or a device
  std::uint64_t allocations = 0;       // calls of cudaMalloc
  std::uint64_t collectives = 0;       // NCCL operations that ran
  std::uint64_t matmuls = 0;           // of cuBLASLt
  std::uint64_t barriers = 0;          // of blocks
  std::uint64_t warp_collectives = 0;  // arrivals
  std::uint64_t ldmatrix = 0;
  std::uint64_t ldmatrix_conflicts = 0;  // extra shared memory cycles
};

Config& config();
Counters counters();
/// The `nth` call of the named runtime or NCCL function from now on (1: the next) fails with `code` (0: a fitting one).
void fail_call(const std::string& function, int nth = 1, int code = 0);
/// What the emulator found wrong, last in this thread; empty: nothing.
std::string last_error();
/// Default settings, zero counters, no failures to come; forgets this thread's errors.
void reset();

}  // namespace simt
