#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

#include <cuda_runtime.h>
#include <nccl.h>

#include "comm/communicator.h"

namespace lockstep::comm::cuda {

/// An NCCL communicator that never blocks the host for long: calls return at once and are polled, with the deadline and the host
/// communicator's check(). Used by one thread; abort() may come from any.
class NcclGroup {
 public:
  /// Collective. `host` must outlive it. @throws CommError
  NcclGroup(Communicator& host, std::chrono::milliseconds deadline);
  /// After an abort nothing is waited for. Recordings that hold its operations must be gone.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// One group of NCCL calls: `calls` makes them on the communicator that it is given, and returns the first error.
  void run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& calls);
  /// Lets NCCL read and write `memory` directly. Until it is freed, which must be after this object.
  void register_memory(void* memory, std::size_t bytes);
  /// What went wrong in the background; empty if nothing.
  std::string error();
  /// Ends all operations, those of recordings too; waits until the recordings are gone. Tries for half a second not to disturb a thread
  /// that is inside of NCCL.
  void abort() noexcept;
  /// From another thread: whether abort() has been called within this time.
  bool wait_for_end(std::chrono::milliseconds patience);
  /// Leaves in good order. Collective, all work done.
  void finish();

 private:
  std::string describe(const char* what, ncclResult_t result);
  void settle(const char* what, ncclResult_t result);

  Communicator& host_;
  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;  // of the handle
  ncclComm_t handle_ = nullptr;
  void* registration_ = nullptr;
};

}  // namespace lockstep::comm::cuda
