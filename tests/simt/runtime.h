#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "simt/executor.h"
#include "simt/simt.h"

/// The parts of the stand-in for CUDA's runtime that its files, and those for NCCL and cuBLASLt, share.
///
/// Nothing here runs beside the host: a stream is a queue, and its operations run in the threads that enqueue, wait or query, each up to
/// its end or until it can only wait for others (Progress::kBlocked). Each host thread is a rank of its own as far as streams go; memory is
/// of the process.
namespace simt {

using Clock = std::chrono::steady_clock;

/// What a stream does. Made anew for each run, so that graphs can repeat it.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual Progress advance() = 0;
  virtual std::string describe() const = 0;
  /// Changes while it does more than wait.
  virtual std::uint64_t progress_made() const { return 0; }
  const std::string& error() const { return error_; }

 protected:
  std::string error_;
};

using MakeOperation = std::function<std::unique_ptr<Operation>()>;

/// An operation that is one call. It returns what went wrong; empty: nothing.
MakeOperation call_operation(std::string what, std::function<std::string()> call);

/// Done when the operations before it are.
struct Ticket {
  std::atomic<bool> done = false;
  Clock::time_point time;
};

struct QueuedOperation {
  MakeOperation make;  // null: only waits or completes
  std::unique_ptr<Operation> running;
  std::shared_ptr<Ticket> waits_for;
  std::shared_ptr<Ticket> completes;
};

struct Node {
  MakeOperation make;
  std::vector<std::size_t> needs;
};

struct Capture {
  std::vector<Node> nodes;
  cudaError_t invalid = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

/// The streams of one host thread, and what failed in them.
struct Context {
  std::recursive_mutex mutex;
  std::vector<CUstream_st*> streams;  // oldest first
  int device = 0;
  cudaError_t last = cudaSuccess;    // until asked for
  cudaError_t sticky = cudaSuccess;  // for good: the context is lost
  std::string error;
  std::uint64_t random_state = 88172645463325252ull;

  bool captures() const;
  std::uint64_t random();
  /// Advances one operation of any stream, in the configured order. @return whether anything moved
  bool step();
  /// Steps until `finished`, or an error. @return the sticky error
  cudaError_t wait(const std::function<bool()>& finished, const char* what);
  void run_eagerly(const CUstream_st& stream);
  cudaError_t lose(cudaError_t code, const std::string& text);
};

}  // namespace simt

struct CUstream_st {
  std::shared_ptr<simt::Context> context;
  std::deque<simt::QueuedOperation> queue;
  unsigned flags = 0;
  int priority = 0;
  std::shared_ptr<simt::Capture> capture;
  bool began_capture = false;
  std::vector<std::size_t> last_nodes;  // of the capture: what comes next needs them
};

struct CUevent_st {
  std::shared_ptr<simt::Ticket> ticket;
  std::shared_ptr<simt::Capture> capture;
  std::vector<std::size_t> nodes;
};

struct CUgraph_st {
  std::vector<simt::Node> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<simt::Node>> nodes;
};

namespace simt {

Context& context();
/// That of the calling thread, to be kept in streams.
std::shared_ptr<Context> shared_context();

/// Notes an error in the calling thread, to be had from cudaGetLastError; `text` for last_error.
cudaError_t note(cudaError_t code, const std::string& text = {});
/// The failure that a test ordered for this call, or cudaSuccess.
int injected_failure(const char* function, int default_code);

/// Appends to a stream, or to the graph that it captures.
cudaError_t enqueue(cudaStream_t stream, const char* what, MakeOperation make);
std::unique_ptr<Operation> make_graph_run(std::shared_ptr<const std::vector<Node>> nodes);

inline bool is_default(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread; }
/// An error that breaks the captures of `mine`, if there are any.
cudaError_t refuse_wait_in_capture(Context& mine, const char* function);
/// What the default stream does: waits for the streams that were created to wait for it, not for cudaStreamNonBlocking ones.
cudaError_t wait_for_blocking_streams(const char* what);

/// Where an address lies.
struct Allocation {
  char* begin = nullptr;
  std::size_t bytes = 0;
  explicit operator bool() const { return begin != nullptr; }
};
bool is_device_space(const void* address);
Allocation device_allocation(const void* address);  // that holds `address`, or ends there
Allocation pinned_allocation(const void* address);
/// All of [address, address + bytes) is memory of a device, this process's or a peer's.
bool is_device_range(const void* address, std::size_t bytes);

/// An address of this process's device memory as other processes can open it.
struct SharedAddress {
  int process = 0;
  int file = -1;
  std::size_t offset = 0;
};
SharedAddress share_address(const void* address);
/// Null: that process has no such memory (any more).
void* open_address(const SharedAddress& shared);

/// Counts that any thread adds to.
struct LiveCounters {
  std::atomic<std::uint64_t> launches, graph_launches, host_to_device, device_to_host, device_to_device, pageable_copies, synchronisations,
      allocations, collectives, matmuls, barriers, warp_collectives, ldmatrix, ldmatrix_conflicts;
};
LiveCounters& live_counters();
void count_kernel(const void* function);

}  // namespace simt

#define SIMT_MAY_FAIL(function, code)                                                \
  if (const int injected = ::simt::injected_failure(#function, code); injected != 0) \
  return ::simt::note(static_cast<cudaError_t>(injected), #function " fails on order")
