#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "simt/nccl_group.h"

/// NCCL's interface.
namespace simt::nccl {

namespace {

Segment* map_segment(const std::string& name, int flags) {
  const int file = shm_open(name.c_str(), flags, 0600);
  if (file < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (ftruncate(file, sizeof(Segment)) == 0) mapped = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<Segment*>(mapped);
}

}  // namespace

Group::~Group() {
  shm_unlink(name.c_str());
  munmap(segment, sizeof(Segment));
}

void Group::set_error(const std::string& text) {
  std::uint32_t none = 0;
  if (!segment->error.compare_exchange_strong(none, 1)) return;
  std::snprintf(segment->error_text, sizeof(segment->error_text), "%s", text.c_str());
  segment->error = 2;
}

std::string Group::error() const { return segment->error == 2 ? std::string(segment->error_text) : std::string(); }

std::string make_segment() {
  std::random_device random;
  const std::string name = fmt::format("/lockstep-simt-nccl-{}-{:08x}{:08x}", getpid(), random(), random());
  Segment* segment = map_segment(name, O_CREAT | O_EXCL | O_RDWR);
  if (segment == nullptr) return {};
  munmap(segment, sizeof(Segment));
  return name;
}

std::shared_ptr<Group> join(const std::string& name, int rank, int size, bool blocking) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) return nullptr;
  Segment* segment = map_segment(name, O_RDWR);
  if (segment == nullptr) return nullptr;
  auto group = std::make_shared<Group>();
  group->segment = segment;
  group->name = name;
  group->rank = rank;
  group->size = size;
  group->blocking = blocking;
  segment->ranks[static_cast<std::size_t>(rank)].attached = 1;
  if (++segment->attached >= static_cast<std::uint32_t>(size)) shm_unlink(name.c_str());  // it lives as long as someone maps it
  return group;
}

}  // namespace simt::nccl

using namespace simt;  // what follows implements C functions of NCCL
using simt::nccl::Group;
using simt::nccl::Kind;
using simt::nccl::Transfer;

struct ncclComm {
  std::shared_ptr<Group> group;
  /// Without blocking, calls take effect when NCCL gets to it: here, when the caller asks whether it did.
  std::vector<std::function<ncclResult_t()>> postponed;
  bool finalized = false;
};

namespace {

thread_local std::string last_text;

ncclResult_t refuse(ncclResult_t result, const std::string& text) {
  last_text = text;
  return result;
}

#define SIMT_NCCL_MAY_FAIL(function, code)                                           \
  if (const int injected = ::simt::injected_failure(#function, code); injected != 0) \
  return refuse(static_cast<ncclResult_t>(injected), #function " fails on order")

struct Call {
  ncclComm_t communicator;
  cudaStream_t stream;
  Transfer transfer;
};

struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Call> calls;
};
thread_local OpenGroup open_group;

bool is_point_to_point(const Call& call) {
  return call.transfer.signature.kind == Kind::kSend || call.transfer.signature.kind == Kind::kReceive;
}

ncclResult_t enqueue_calls(const std::shared_ptr<Group>& group, cudaStream_t stream, const std::vector<Transfer>& transfers,
                           bool point_to_point) {
  if (point_to_point) {
    const cudaError_t code = enqueue(stream, "an NCCL exchange", nccl::exchange_operation(group, transfers));
    return code == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(code));
  }
  for (const Transfer& transfer : transfers) {
    const cudaError_t code = enqueue(stream, "an NCCL collective", nccl::collective_operation(group, transfer));
    if (code != cudaSuccess) return refuse(ncclUnhandledCudaError, cudaGetErrorString(code));
  }
  return ncclSuccess;
}

ncclResult_t flush(ncclComm& communicator) {
  ncclResult_t result = ncclSuccess;
  for (const auto& call : std::exchange(communicator.postponed, {})) {
    const ncclResult_t one = call();
    if (result == ncclSuccess) result = one;
  }
  if (result != ncclSuccess) communicator.group->async_error = result;
  return result;
}

ncclResult_t submit(std::vector<Call> calls) {
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    // Those of one communicator, stream and kind go together, in order.
    const Call first = calls.front();
    const auto alike = [&](const Call& call) {
      return call.communicator == first.communicator && call.stream == first.stream && is_point_to_point(call) == is_point_to_point(first);
    };
    std::vector<Transfer> transfers;
    for (const Call& call : calls) {
      if (alike(call)) transfers.push_back(call.transfer);
    }
    std::erase_if(calls, alike);
    ncclComm& communicator = *first.communicator;
    const auto go = [group = communicator.group, stream = first.stream, transfers, both = is_point_to_point(first)] {
      return enqueue_calls(group, stream, transfers, both);
    };
    if (!communicator.group->blocking) {
      communicator.postponed.push_back(go);
      if (result == ncclSuccess) result = ncclInProgress;
    } else if (const ncclResult_t one = go(); one != ncclSuccess) {
      result = one;
    }
  }
  return result;
}

/// How many elements a call reads and writes on this rank.
std::pair<std::size_t, std::size_t> elements(const Group& group, const nccl::Signature& signature) {
  const std::size_t count = signature.count;
  const auto size = static_cast<std::size_t>(group.size);
  switch (signature.kind) {
    case Kind::kAllGather: return {count, count * size};
    case Kind::kReduceScatter: return {count * size, count};
    case Kind::kBroadcast: return {group.rank == signature.root ? count : 0, count};
    case Kind::kReduce: return {count, group.rank == signature.root ? count : 0};
    case Kind::kSend: return {count, 0};
    case Kind::kReceive: return {0, count};
    case Kind::kAllReduce: break;
  }
  return {count, count};
}

ncclResult_t call(ncclComm_t communicator, cudaStream_t stream, const Transfer& transfer) {
  if (communicator == nullptr) return refuse(ncclInvalidArgument, "no communicator");
  const Group& group = *communicator->group;
  const auto check = [&]() -> ncclResult_t {
    if (!group.complete()) return refuse(ncclInvalidUsage, "the communicator is not complete yet");
    if (communicator->finalized) return refuse(ncclInvalidUsage, "the communicator is finalized");
    if (transfer.peer < 0 || transfer.peer >= group.size) return refuse(ncclInvalidArgument, "no such rank");
    const auto [reads, writes] = elements(group, transfer.signature);
    const std::size_t bytes = nccl::bytes_of(transfer.signature.type);
    if (reads > 0 && !is_device_range(transfer.from, reads * bytes)) return refuse(ncclInvalidArgument, "sends what is no device memory");
    if (writes > 0 && !is_device_range(transfer.to, writes * bytes)) return refuse(ncclInvalidArgument, "receives into no device memory");
    return ncclSuccess;
  };
  const ncclResult_t result = check();
  if (open_group.depth > 0) {
    if (result == ncclSuccess) open_group.calls.push_back({communicator, stream, transfer});
    if (open_group.error == ncclSuccess) open_group.error = result;
    return result;
  }
  if (result != ncclSuccess) return result;
  if (const ncclResult_t earlier = flush(*communicator); earlier != ncclSuccess) return earlier;
  return submit({{communicator, stream, transfer}});
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  SIMT_NCCL_MAY_FAIL(ncclGetUniqueId, ncclSystemError);
  const std::string name = nccl::make_segment();
  if (name.empty()) return refuse(ncclSystemError, "no shared memory");
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%s", name.c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  SIMT_NCCL_MAY_FAIL(ncclCommInitRankConfig, ncclSystemError);
  *communicator = nullptr;
  const bool blocking = config == nullptr || config->blocking != 0;  // undefined: it blocks
  const std::shared_ptr<Group> group = nccl::join(id.internal, rank, size, blocking);
  if (group == nullptr) return refuse(ncclInvalidArgument, fmt::format("cannot join as rank {} of {}", rank, size));
  *communicator = new ncclComm{group, {}, false};
  if (!blocking) return ncclInProgress;
  const auto begin = Clock::now();
  while (!group->complete()) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() > ::simt::config().watchdog_seconds) {
      return refuse(ncclSystemError, "not all ranks joined");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, size, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  SIMT_NCCL_MAY_FAIL(ncclCommGetAsyncError, ncclInternalError);
  const Group& group = *communicator->group;
  if (!group.complete()) return *error = ncclInProgress, ncclSuccess;
  flush(*communicator);
  *error = static_cast<ncclResult_t>(group.async_error.load());
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  SIMT_NCCL_MAY_FAIL(ncclCommFinalize, ncclInternalError);
  flush(*communicator);
  communicator->finalized = true;
  return communicator->group->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;  // operations that are left keep what they need
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclSuccess;
  communicator->group->aborted = true;
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) { return *count = communicator->group->size, ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) { return *rank = communicator->group->rank, ncclSuccess; }
ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) { return *device = context().device, ncclSuccess; }

ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, std::size_t bytes, void** handle) {
  SIMT_NCCL_MAY_FAIL(ncclCommRegister, ncclSystemError);
  if (!is_device_range(memory, bytes)) return refuse(ncclInvalidArgument, "registers what is no device memory");
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, "out of memory");
}
ncclResult_t ncclMemFree(void* memory) { return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t communicator) {
  if (communicator != nullptr && !communicator->group->error().empty()) last_text = communicator->group->error();
  return last_text.c_str();
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t communicator, cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclAllReduce, ncclInternalError);
  return call(communicator, stream, {{Kind::kAllReduce, type, count, reduction, 0}, from, to, 0});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t communicator, cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclReduceScatter, ncclInternalError);
  return call(communicator, stream, {{Kind::kReduceScatter, type, count, reduction, 0}, from, to, 0});
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclAllGather, ncclInternalError);
  return call(communicator, stream, {{Kind::kAllGather, type, count, 0, 0}, from, to, 0});
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                           cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclBroadcast, ncclInternalError);
  const bool is_root = communicator != nullptr && communicator->group->rank == root;
  return call(communicator, stream, {{Kind::kBroadcast, type, count, 0, root}, is_root ? from : to, to, root});
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t communicator, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclReduce, ncclInternalError);
  return call(communicator, stream, {{Kind::kReduce, type, count, reduction, root}, from, to, root});
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclSend, ncclInternalError);
  return call(communicator, stream, {{Kind::kSend, type, count, 0, 0}, from, nullptr, peer});
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  SIMT_NCCL_MAY_FAIL(ncclRecv, ncclInternalError);
  return call(communicator, stream, {{Kind::kReceive, type, count, 0, 0}, nullptr, to, peer});
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  SIMT_NCCL_MAY_FAIL(ncclGroupEnd, ncclInternalError);
  if (open_group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open_group.depth > 0) return ncclSuccess;
  std::vector<Call> calls = std::exchange(open_group.calls, {});
  const ncclResult_t error = std::exchange(open_group.error, ncclSuccess);
  if (error != ncclSuccess) return error;
  for (const Call& one : calls) {
    if (const ncclResult_t earlier = flush(*one.communicator); earlier != ncclSuccess) return earlier;
  }
  return submit(std::move(calls));
}

}  // extern "C"
