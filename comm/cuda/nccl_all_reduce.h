#pragma once

#include <algorithm>
#include <cstddef>

#include "comm/cuda/all_reduce.h"
#include "comm/cuda/nccl_group.h"
#include "device/cuda/memory.h"

namespace lockstep::comm::cuda {

/// all_reduce with NCCL as the carrier: it moves roots, a kernel of ours adds them up. Sums that are larger than the exchange memory go in
/// pieces. `values` as in Communicator::all_reduce.
class NcclAllReduce {
 public:
  /// Collective. `max_floats`: of the largest message, its roots on all ranks together; more memory than that is not taken. 0: unknown.
  NcclAllReduce(Communicator& host, std::chrono::milliseconds deadline, std::size_t max_floats);

  /// All roots go to everybody, who add up everything. 4 * count * pad * N bytes arrive, with pad the most roots of a rank.
  void gather(const Launch& launch, const TreeProgram& program, const TreeSum& tree, float* values, std::size_t count);
  /// Each rank gets the roots of its slice, and sends the finished slice to everybody. About 4 * count * R / N + 4 * count bytes arrive.
  void slices(const Launch& launch, const TreeProgram& program, const TreeSum& tree, float* values, std::size_t count);
  /// ncclAllReduce of the sums of each rank's roots: the order of additions is NCCL's.
  void fast(const Launch& launch, const TreeSum& tree, float* values, std::size_t count);

  NcclGroup& group() { return group_; }

 private:
  /// One piece of slices(): columns [at, at + length), cut in slices of `slice`.
  struct Piece {
    std::size_t at;
    std::size_t length;
    std::size_t slice;
    std::size_t begin(int rank) const { return std::min(length, static_cast<std::size_t>(rank) * slice); }
    std::size_t size(int rank) const { return begin(rank + 1) - begin(rank); }
  };
  void exchange_slices(const Launch& launch, const TreeSum& tree, const float* values, std::size_t count, const Piece& piece);
  void exchange_results(const Launch& launch, float* values, const Piece& piece);

  int rank_;
  std::size_t ranks_;
  device::cuda::DeviceMemory buffer_;  // before the group: it is registered with it
  NcclGroup group_;
};

}  // namespace lockstep::comm::cuda
