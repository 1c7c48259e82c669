#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "simt/runtime.h"
#include "simt/sanitizers.h"

/// Memory of devices: one shared mapping a process, so that peers can open any part of it. Each allocation is filled with 0xFF and stands
/// between red zones.
namespace simt {

namespace {

constexpr std::size_t kSpaceBytes = std::size_t{64} << 30;
constexpr std::size_t kRedZone = 512;
constexpr int kRedZoneByte = 0xB5;
constexpr int kMaxDevices = 64;
constexpr int kMaxPeers = 256;  // processes whose memory was opened

/// Held for a few instructions. Not a std::mutex: the thread sanitizer would take two ranks that allocate for ranks that wait for each
/// other.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

struct Range {
  char* begin;
  std::size_t bytes;
  int device;
};

/// Sorted by address, in memory of its own for the same reason.
class RangeTable {
 public:
  RangeTable()
      : ranges_(static_cast<Range*>(
            mmap(nullptr, kMax * sizeof(Range), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  bool insert(Range range) {
    if (count_ == kMax) return false;
    std::size_t at = count_++;
    for (; at > 0 && ranges_[at - 1].begin > range.begin; --at) ranges_[at] = ranges_[at - 1];
    ranges_[at] = range;
    return true;
  }
  Range remove(const void* begin) {
    Range* found = find(begin);
    if (found == nullptr || found->begin != begin) return {};
    const Range removed = *found;
    --count_;
    for (auto at = static_cast<std::size_t>(found - ranges_); at < count_; ++at) ranges_[at] = ranges_[at + 1];
    return removed;
  }
  /// The last that begins at or before `address`, if it reaches there or ends there.
  Range* find(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    std::size_t low = 0;
    for (std::size_t high = count_; low < high;) {
      const std::size_t middle = (low + high) / 2;
      (ranges_[middle].begin <= at ? low : high) = ranges_[middle].begin <= at ? middle + 1 : middle;
    }
    if (low == 0 || at > ranges_[low - 1].begin + ranges_[low - 1].bytes) return nullptr;
    return &ranges_[low - 1];
  }
  const Range* begin() const { return ranges_; }
  const Range* end() const { return ranges_ + count_; }
  std::size_t size() const { return count_; }

 private:
  static constexpr std::size_t kMax = 1 << 17;
  Range* ranges_;
  std::size_t count_ = 0;
};

struct Peer {
  int process;
  int file;
  char* base;
};

struct Space {
  SpinLock lock;
  int file = -1;
  char* base = nullptr;
  std::size_t used = 0;
  std::size_t used_of_device[kMaxDevices] = {};
  RangeTable live;
  RangeTable unused;  // freed, with the red zones
  RangeTable pinned;
  Peer peers[kMaxPeers] = {};
  int num_peers = 0;

  Space() {
    file = memfd_create("simt-device-memory", MFD_CLOEXEC);
    void* mapped = MAP_FAILED;
    if (file >= 0 && ftruncate(file, static_cast<off_t>(kSpaceBytes)) == 0) {
      mapped = mmap(nullptr, kSpaceBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (mapped == MAP_FAILED) throw std::runtime_error("simt: no address space for device memory");
    base = static_cast<char*>(mapped);
    release(base);
  }
};

Space& space() {
  static Space space;
  return space;
}

bool in_own_space(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return at >= space().base && at < space().base + kSpaceBytes;
}

/// With a red zone on each side.
std::size_t bytes_with_zones(std::size_t bytes) { return (bytes + 255) / 256 * 256 + 2 * kRedZone; }

char* take_space(Space& memory, std::size_t bytes) {
  for (const Range& range : memory.unused) {
    if (range.bytes == bytes) return memory.unused.remove(range.begin).begin;
  }
  if (memory.used + bytes > kSpaceBytes) return nullptr;
  char* begin = memory.base + memory.used;
  memory.used += bytes;
  return begin;
}

void set_red_zones(const Range& range) {
  char* begin = range.begin - kRedZone;
  const std::size_t bytes = bytes_with_zones(range.bytes);
  unpoison(begin, bytes);
  fill_bytes(begin, kRedZoneByte, kRedZone);
  fill_bytes(range.begin + range.bytes, kRedZoneByte, bytes - kRedZone - range.bytes);
  poison(begin, kRedZone);
  poison(range.begin + range.bytes, bytes - kRedZone - range.bytes);
}

/// The first damaged byte, or null. Without the address sanitizer's own red zones only.
const char* damage_of(const Range& range) {
#if defined(LOCKSTEP_SIMT_ASAN)
  static_cast<void>(range);
  return nullptr;
#else
  const auto is_damaged = [](char byte) { return static_cast<unsigned char>(byte) != kRedZoneByte; };
  const char* begin = range.begin - kRedZone;
  const char* before = std::find_if(begin, static_cast<const char*>(range.begin), is_damaged);
  if (before != range.begin) return before;
  const char* end = begin + bytes_with_zones(range.bytes);
  const char* behind = std::find_if(static_cast<const char*>(range.begin) + range.bytes, end, is_damaged);
  return behind != end ? behind : nullptr;
#endif
}

std::string describe_damage(const Range& range, const char* where) {
  const std::ptrdiff_t offset = where - range.begin;
  return fmt::format("device memory written out of bounds, at byte {} of an allocation of {} bytes", offset, range.bytes);
}

}  // namespace

std::string damaged_red_zones() {
  Space& memory = space();
  const std::lock_guard lock(memory.lock);
  for (const Range& range : memory.live) {
    const char* where = damage_of(range);
    if (where == nullptr) continue;
    std::string text = describe_damage(range, where);
    set_red_zones(range);
    return text;
  }
  return {};
}

bool is_device_space(const void* address) {
  if (in_own_space(address)) return true;
  Space& memory = space();
  const std::lock_guard lock(memory.lock);
  const auto* at = static_cast<const char*>(address);
  return std::any_of(memory.peers, memory.peers + memory.num_peers,
                     [&](const Peer& peer) { return at >= peer.base && at < peer.base + kSpaceBytes; });
}

Allocation device_allocation(const void* address) {
  Space& memory = space();
  const std::lock_guard lock(memory.lock);
  const Range* range = memory.live.find(address);
  return range == nullptr ? Allocation{} : Allocation{range->begin, range->bytes};
}

Allocation pinned_allocation(const void* address) {
  Space& memory = space();
  const std::lock_guard lock(memory.lock);
  const Range* range = memory.pinned.find(address);
  return range == nullptr ? Allocation{} : Allocation{range->begin, range->bytes};
}

bool is_device_range(const void* address, std::size_t bytes) {
  if (!in_own_space(address)) return is_device_space(address);
  const Allocation allocation = device_allocation(address);
  return allocation && static_cast<const char*>(address) + bytes <= allocation.begin + allocation.bytes;
}

SharedAddress share_address(const void* address) {
  return {getpid(), space().file, static_cast<std::size_t>(static_cast<const char*>(address) - space().base)};
}

void* open_address(const SharedAddress& shared) {
  Space& memory = space();
  if (shared.process == getpid()) return memory.base + shared.offset;  // another rank of this process; CUDA's IPC would refuse
  const std::lock_guard lock(memory.lock);
  for (int i = 0; i < memory.num_peers; ++i) {
    const Peer& peer = memory.peers[i];
    if (peer.process != shared.process || peer.file != shared.file) continue;
    acquire(peer.base);
    return peer.base + shared.offset;
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", shared.process, shared.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || memory.num_peers == kMaxPeers) return nullptr;
  void* mapped = mmap(nullptr, kSpaceBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return nullptr;
  release(mapped);
  memory.peers[memory.num_peers++] = {shared.process, shared.file, static_cast<char*>(mapped)};
  return static_cast<char*>(mapped) + shared.offset;
}

namespace {

cudaError_t allocate(void** pointer, std::size_t bytes) {
  *pointer = nullptr;
  ++live_counters().allocations;
  if (bytes == 0) return cudaSuccess;
  Space& memory = space();
  const int device = context().device;
  char* begin = nullptr;
  {
    const std::lock_guard lock(memory.lock);
    if (memory.used_of_device[device] + bytes > config().memory_bytes) return note(cudaErrorMemoryAllocation);
    begin = take_space(memory, bytes_with_zones(bytes));
    if (begin == nullptr) return note(cudaErrorMemoryAllocation);
    begin += kRedZone;
    memory.used_of_device[device] += bytes;
    const Range range{begin, bytes, device};
    set_red_zones(range);
    memory.live.insert(range);
  }
  unpoison(begin, bytes);
  acquire(memory.base);  // another rank may have mapped it: to the thread sanitizer, that is a write
  acquire(begin);        // whoever had the place before is done with it
  std::memset(begin, 0xFF, bytes);
  *pointer = begin;
  return cudaSuccess;
}

cudaError_t deallocate(void* pointer) {
  Space& memory = space();
  std::string damage;
  Range range{};
  {
    const std::lock_guard lock(memory.lock);
    range = memory.live.remove(pointer);
    if (range.begin != nullptr) {
      const char* where = damage_of(range);
      if (where != nullptr) damage = describe_damage(range, where);
      memory.used_of_device[range.device] -= range.bytes;
    }
  }
  if (range.begin == nullptr) return note(cudaErrorInvalidValue, "cudaFree of what cudaMalloc did not give, or twice");
  char* begin = range.begin - kRedZone;
  const std::size_t bytes = bytes_with_zones(range.bytes);
  constexpr std::size_t kLarge = 1 << 20;
  if (bytes >= kLarge) {
    const off_t from = (begin - space().base + 4095) / 4096 * 4096;
    const off_t to = (begin + bytes - space().base) / 4096 * 4096;
    fallocate(memory.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from);
  }
  poison(begin, bytes);
  release(range.begin);
  {
    const std::lock_guard lock(memory.lock);
    memory.unused.insert({begin, bytes, 0});
  }
  return damage.empty() ? cudaSuccess : note(cudaErrorIllegalAddress, damage);
}

/// Waits for all that the calling thread has enqueued: what frees memory, does.
cudaError_t drain() {
  Context& mine = context();
  const auto idle = [&] { return std::all_of(mine.streams.begin(), mine.streams.end(), [](const auto* s) { return s->queue.empty(); }); };
  return mine.wait(idle, "freeing memory");
}

cudaError_t refuse_in_capture(const char* function) {
  Context& mine = context();
  const std::lock_guard lock(mine.mutex);
  cudaError_t code = cudaSuccess;
  for (CUstream_st* stream : mine.streams) {
    if (stream->capture == nullptr || stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    stream->capture->invalid = cudaErrorStreamCaptureInvalidated;
    code = cudaErrorStreamCaptureUnsupported;
  }
  return code == cudaSuccess ? code : note(code, fmt::format("{} while a stream is captured", function));
}

}  // namespace

}  // namespace simt

using namespace simt;  // what follows implements C functions of CUDA

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  SIMT_MAY_FAIL(cudaMalloc, cudaErrorMemoryAllocation);
  if (const cudaError_t code = refuse_in_capture("cudaMalloc"); code != cudaSuccess) return code;
  return allocate(pointer, bytes);
}

cudaError_t cudaFree(void* pointer) {
  SIMT_MAY_FAIL(cudaFree, cudaErrorInvalidValue);
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t code = refuse_in_capture("cudaFree"); code != cudaSuccess) return code;
  drain();
  return deallocate(pointer);
}

cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t) {
  SIMT_MAY_FAIL(cudaMallocAsync, cudaErrorMemoryAllocation);
  if (const cudaError_t code = refuse_in_capture("cudaMallocAsync"); code != cudaSuccess) return code;
  return allocate(pointer, bytes);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaFreeAsync, cudaErrorInvalidValue);
  return enqueue(stream, "cudaFreeAsync", call_operation("cudaFreeAsync", [pointer] {
                   return deallocate(pointer) == cudaSuccess ? std::string() : std::string("cudaFreeAsync of what is no allocation");
                 }));
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  SIMT_MAY_FAIL(cudaMemGetInfo, cudaErrorInvalidValue);
  Space& memory = space();
  const std::lock_guard lock(memory.lock);
  *total_bytes = config().memory_bytes;
  const std::size_t used = memory.used_of_device[context().device];
  *free_bytes = *total_bytes > used ? *total_bytes - used : 0;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  SIMT_MAY_FAIL(cudaHostAlloc, cudaErrorMemoryAllocation);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t code = refuse_in_capture("cudaHostAlloc"); code != cudaSuccess) return code;
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (memory == nullptr) return note(cudaErrorMemoryAllocation);
  std::memset(memory, 0xFF, bytes);
  return *pointer = memory, cudaHostRegister(memory, bytes, 0);
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  SIMT_MAY_FAIL(cudaHostRegister, cudaErrorMemoryAllocation);
  const std::lock_guard lock(space().lock);
  space().pinned.insert({static_cast<char*>(pointer), bytes, 0});
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  drain();
  const std::lock_guard lock(space().lock);
  return space().pinned.remove(pointer).begin != nullptr ? cudaSuccess : note(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t code = cudaHostUnregister(pointer);
  if (code == cudaSuccess) std::free(pointer);
  return code;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return pinned_allocation(host) ? cudaSuccess : note(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = is_device_space(pointer)     ? cudaMemoryTypeDevice
                     : pinned_allocation(pointer) ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeUnregistered;
  if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = const_cast<void*>(pointer);
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

// A handle names the whole allocation: what is opened is its beginning, whatever part of it was asked for.
static_assert(sizeof(SharedAddress) <= sizeof(cudaIpcMemHandle_t));

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  SIMT_MAY_FAIL(cudaIpcGetMemHandle, cudaErrorInvalidValue);
  const Allocation allocation = device_allocation(pointer);
  if (!allocation) return note(cudaErrorInvalidValue, "cudaIpcGetMemHandle of what is no device memory");
  const SharedAddress named = share_address(allocation.begin);
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &named, sizeof(named));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  SIMT_MAY_FAIL(cudaIpcOpenMemHandle, cudaErrorMapBufferObjectFailed);
  SharedAddress named;
  std::memcpy(static_cast<void*>(&named), &handle, sizeof(named));
  *pointer = open_address(named);
  if (*pointer != nullptr) return cudaSuccess;
  return note(cudaErrorMapBufferObjectFailed, fmt::format("process {} has no device memory to map", named.process));
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  SIMT_MAY_FAIL(cudaIpcCloseMemHandle, cudaErrorInvalidValue);
  return is_device_space(pointer) ? cudaSuccess : note(cudaErrorInvalidValue);
}

}  // extern "C"
