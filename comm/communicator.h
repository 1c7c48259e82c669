#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace lockstep::comm {

/// The rest of a fixed binary tree once every rank has added up what lies wholly in its share (docs/numerics.md, N2). Roots are numbered
/// over the ranks in ascending order; the same object must be given by every rank. parallel::ReductionTree makes it.
struct TreeSum {
  using Merge = device::SumOfParts::Merge;  // of roots
  std::vector<std::uint32_t> roots_per_rank;
  std::vector<Merge> merges;  // in order; the sum is in root 0 at the end
  bool operator==(const TreeSum&) const = default;
};

/// A peer died, called abort(), or did not arrive within the deadline. What the communicator was used for can not go on.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where a rank stands, for the report that names who is late. Set by the runner, shown to peers where the implementation can.
struct Position {
  std::uint64_t step = 0;
  char node[48] = {};  // zero-terminated name of the graph node, or of the phase ("load", "schedule")
};

/// What follows a row-parallel product: x += sum (+ bias), out = norm(x). See device::Device::add_norm.
struct ResidualNorm {
  device::Matrix x;
  const float* bias = nullptr;
  device::Norm norm;
  device::Matrix out;
  bool keep_sum = false;  // for one who looks on: the sum stands in `partial` afterwards. A rank may want it alone
};

/// The data plane between the ranks of one tensor-parallel group. Every call but abort() is collective: all ranks make the same calls in
/// the same order with the same sizes. A call throws CommError when a peer is gone, has called abort(), or is later than the deadline; from
/// then on every call throws. It never hangs. Used by one thread of the rank at a time. Results are the same bits on every rank and for
/// every implementation.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;  // "self", "threads", "shm", "mpi", "cuda"

  /// `values` holds this rank's roots, [roots of this rank, count] fp32, dense; at the end its first `count` values are the sum of the
  /// whole tree. Allreduce of `count` values moves about 4 * count * roots bytes out of each rank.
  /// `values` is memory of the rank's device, and the call is ordered with the ops of that device; all other calls are about host memory.
  virtual void all_reduce(const TreeSum& tree, float* values, std::size_t count) = 0;
  /// all_reduce of `num_rows` rows of `partial` (kFloat32), then device.add_norm with the sum. The same bits as the two calls; a
  /// transport between GPUs makes it one kernel, one over host memory may leave the adding to the device. What `partial` holds at the end
  /// is undefined, unless then.keep_sum. Within run_step, device.begin_host_access(partial) comes before it, as before every call that
  /// follows.
  virtual void all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                                   const ResidualNorm& then) {
    all_reduce(tree, static_cast<float*>(partial.data), num_rows * partial.columns);
    device.add_norm(then.x, partial, num_rows, then.bias, then.norm, then.out);
  }
  /// Every rank contributes bytes_per_rank[rank] bytes (zero is fine); `all` receives them in rank order. `mine` must not overlap `all`.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) = 0;
  /// As all_gather, but only `root` receives; `all` is empty elsewhere.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;

  /// Throws CommError if the group can not go on: a peer is gone or has called abort(). Returns at once; not collective. To be called while
  /// waiting for anything else that peers take part in.
  virtual void check() = 0;

  /// Tells every peer, so that their current and later calls throw a CommError with this reason. The first reason stays. Callable from any
  /// thread.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// Cheap (no system call): to be called before every node.
  virtual void set_position(const Position& position) noexcept = 0;
};

}  // namespace lockstep::comm
