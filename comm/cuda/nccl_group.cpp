#include "comm/cuda/nccl_group.h"

#include <span>
#include <thread>

namespace lockstep::comm::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::milliseconds(500);  // with the user's thread, before its calls are cut off

}  // namespace

NcclGroup::NcclGroup(Communicator& host, std::chrono::milliseconds deadline) : host_(host), deadline_(deadline) {
  ncclUniqueId id{};
  if (host.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) throw CommError(describe("ncclGetUniqueId", result));
  }
  host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = ncclCommInitRankConfig(&handle_, host.size(), id, host.rank(), &config);
  try {
    settle("making the NCCL communicator", result);
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() { abort(); }

void NcclGroup::run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& calls) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr) throw CommError(std::string(what) + ": the NCCL communicator was aborted");
    ncclGroupStart();
    result = calls(handle_);
    const ncclResult_t end = ncclGroupEnd();
    if (result == ncclSuccess || result == ncclInProgress) result = end;
  }
  settle(what, result);
}

void NcclGroup::register_memory(void* memory, std::size_t bytes) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    result = ncclCommRegister(handle_, memory, bytes, &registration_);
  }
  settle("registering memory with NCCL", result);
}

std::string NcclGroup::error() {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(handle_, &state);
  if (result != ncclSuccess) state = result;
  return state == ncclSuccess || state == ncclInProgress ? std::string() : describe("an operation between GPUs", state);
}

/// Waits until NCCL has done with the call, not with its operations.
void NcclGroup::settle(const char* what, ncclResult_t result) {
  const auto start = Clock::now();
  while (result == ncclInProgress) {
    host_.check();
    if (Clock::now() - start >= deadline_)
      throw CommError(std::string(what) + ": NCCL has not finished within " + std::to_string(deadline_.count()) +
                      " ms, which is the deadline");
    {
      const std::lock_guard lock(mutex_);
      if (handle_ == nullptr) throw CommError(std::string(what) + ": the NCCL communicator was aborted");
      const ncclResult_t query = ncclCommGetAsyncError(handle_, &result);
      if (query != ncclSuccess) result = query;
    }
    if (result == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (result != ncclSuccess) throw CommError(describe(what, result));
}

void NcclGroup::abort() noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto start = Clock::now();  // not locked in the end: the user's thread hangs in NCCL, and only this gets it out
  while (!lock.try_lock() && Clock::now() - start < patience) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (handle_ == nullptr) return;
  ncclCommAbort(std::exchange(handle_, nullptr));
}

bool NcclGroup::wait_for_end(std::chrono::milliseconds time) {
  const auto start = Clock::now();
  while (true) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && handle_ == nullptr) return true;
    if (Clock::now() - start >= time) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void NcclGroup::finish() {
  if (handle_ == nullptr) return;
  if (registration_ != nullptr) {
    const std::lock_guard lock(mutex_);
    ncclCommDeregister(handle_, std::exchange(registration_, nullptr));
  }
  settle("leaving NCCL", ncclCommFinalize(handle_));
  const std::lock_guard lock(mutex_);
  if (handle_ != nullptr) ncclCommDestroy(std::exchange(handle_, nullptr));
}

std::string NcclGroup::describe(const char* what, ncclResult_t result) {
  const char* detail = handle_ == nullptr ? nullptr : ncclGetLastError(handle_);
  return std::string(what) + ": NCCL says: " + ncclGetErrorString(result) +
         (detail == nullptr || *detail == '\0' ? std::string() : " (" + std::string(detail) + ")") + ", on rank " +
         std::to_string(host_.rank());
}

}  // namespace lockstep::comm::cuda
