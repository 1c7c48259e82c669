#include <algorithm>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "simt/runtime.h"

/// Streams, events, launches.
namespace simt {

namespace {

class CallOperation final : public Operation {
 public:
  CallOperation(std::string what, std::function<std::string()> call) : what_(std::move(what)), call_(std::move(call)) {}
  Progress advance() override {
    error_ = call_();
    return error_.empty() ? Progress::kDone : Progress::kFailed;
  }
  std::string describe() const override { return what_; }

 private:
  std::string what_;
  std::function<std::string()> call_;
};

/// What is wrong with the pointers among a kernel's arguments, those within structures included.
std::string wrong_pointers(const std::vector<ArgumentBytes>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& [bytes, size, is_pointer] = arguments[i];
    for (std::size_t offset = 0; offset + sizeof(void*) <= size; offset += sizeof(void*)) {
      const void* pointer = nullptr;
      std::memcpy(&pointer, static_cast<const char*>(bytes) + offset, sizeof(pointer));
      if (pointer == nullptr) continue;
      const bool own_space = is_device_space(pointer);
      const bool known = own_space ? is_device_range(pointer, 0) : static_cast<bool>(pinned_allocation(pointer));
      if (own_space && !known) return fmt::format("argument {} of the kernel points to device memory that is not allocated", i);
      if (is_pointer && !known) return fmt::format("argument {} of the kernel is a pointer to memory of the host", i);
    }
  }
  return {};
}

class KernelOperation final : public Operation {
 public:
  KernelOperation(const KernelLaunch& launch, const std::vector<ArgumentBytes>& arguments)
      : grid_(launch), arguments_(arguments), function_(launch.function), thread_(std::this_thread::get_id()) {}

  Progress advance() override {
    if (std::this_thread::get_id() != thread_) return Progress::kBlocked;  // fibers stay where they began
    if (!begun_) {
      begun_ = true;
      count_kernel(function_);
      error_ = wrong_pointers(arguments_);
      if (!error_.empty()) {
        error_ += ": " + grid_.kernel_name();
        return Progress::kFailed;
      }
    }
    const Progress progress = grid_.run();
    if (progress != Progress::kBlocked) {
      LiveCounters& live = live_counters();
      live.barriers += grid_.counted.barriers;
      live.warp_collectives += grid_.counted.warp_collectives;
      live.ldmatrix += grid_.counted.ldmatrix;
      live.ldmatrix_conflicts += grid_.counted.ldmatrix_conflicts;
      error_ = grid_.error();
    }
    return progress;
  }
  std::string describe() const override { return "kernel " + grid_.kernel_name() + grid_.where_threads_wait(); }
  std::uint64_t progress_made() const override { return grid_.progress_made(); }

 private:
  Grid grid_;
  std::vector<ArgumentBytes> arguments_;
  const void* function_;
  std::thread::id thread_;
  bool begun_ = false;
};

void complete(QueuedOperation& operation) {
  if (operation.completes == nullptr) return;
  operation.completes->time = Clock::now();
  operation.completes->done = true;
}

}  // namespace

MakeOperation call_operation(std::string what, std::function<std::string()> call) {
  return [what = std::move(what), call = std::move(call)] { return std::make_unique<CallOperation>(what, call); };
}

std::shared_ptr<Context> shared_context() {
  thread_local const std::shared_ptr<Context> context_of_thread = std::make_shared<Context>();
  return context_of_thread;
}

Context& context() {
  thread_local Context* const mine = shared_context().get();
  return *mine;
}

cudaError_t note(cudaError_t code, const std::string& text) {
  if (code == cudaSuccess) return code;
  Context& mine = context();
  mine.last = code;
  if (!text.empty()) mine.error = text;
  return code;
}

bool Context::captures() const {
  return std::any_of(streams.begin(), streams.end(), [](const CUstream_st* stream) { return stream->capture != nullptr; });
}

std::uint64_t Context::random() {
  random_state ^= (random_state << 13) + config().seed;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/// The context is lost: what stands in its streams never runs.
cudaError_t Context::lose(cudaError_t code, const std::string& text) {
  if (sticky == cudaSuccess) {
    sticky = code;
    error = text;
    context().error = text;
  }
  for (CUstream_st* stream : streams) {
    for (QueuedOperation& operation : stream->queue) complete(operation);
    stream->queue.clear();
  }
  return code;
}

bool Context::step() {
  std::vector<CUstream_st*> candidates;
  for (CUstream_st* stream : streams) {
    if (stream->queue.empty()) continue;
    const QueuedOperation& first = stream->queue.front();
    if (first.waits_for == nullptr || first.waits_for->done) candidates.push_back(stream);
  }
  const StreamOrder order = config().stream_order;
  if (order == StreamOrder::kLastFirst) std::reverse(candidates.begin(), candidates.end());
  if (order == StreamOrder::kRandom) {
    for (std::size_t i = candidates.size(); i > 1; --i) std::swap(candidates[i - 1], candidates[random() % i]);
  }
  bool moved = false;
  for (CUstream_st* stream : candidates) {
    QueuedOperation& operation = stream->queue.front();
    if (operation.make != nullptr && operation.running == nullptr) operation.running = operation.make();
    const std::uint64_t before = operation.running == nullptr ? 0 : operation.running->progress_made();
    const Progress progress = operation.running == nullptr ? Progress::kDone : operation.running->advance();
    if (progress == Progress::kFailed) {
      lose(cudaErrorLaunchFailure, operation.running->error());
      return true;
    }
    if (progress == Progress::kDone) {
      complete(operation);
      stream->queue.pop_front();
      return true;
    }
    moved = moved || operation.running->progress_made() != before;
  }
  return moved;
}

cudaError_t Context::wait(const std::function<bool()>& finished, const char* what) {
  Clock::time_point last_move = Clock::now();
  for (int idle = 0;; ++idle) {
    {
      const std::lock_guard lock(mutex);
      while (!finished() && step()) {
        last_move = Clock::now();
        idle = 0;
      }
      if (finished()) return sticky != cudaSuccess ? note(sticky, error) : cudaSuccess;
      if (std::chrono::duration<double>(Clock::now() - last_move).count() > config().watchdog_seconds) {
        std::string text = fmt::format("{}: nothing moved for {} s", what, config().watchdog_seconds);
        for (const CUstream_st* stream : streams) {
          if (stream->queue.empty()) continue;
          const Operation* first = stream->queue.front().running.get();
          text += "\n  a stream is at " + (first == nullptr ? "a wait for an event" : first->describe());
        }
        return note(lose(cudaErrorLaunchTimeout, text), text);
      }
    }
    if (idle < 100) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

/// Until the stream is empty, or waits for someone else.
void Context::run_eagerly(const CUstream_st& stream) {
  for (int idle = 0; idle < 20 && !stream.queue.empty(); ++idle) {
    while (!stream.queue.empty() && step()) idle = 0;
    sched_yield();
  }
}

cudaError_t enqueue_operation(CUstream_st& stream, QueuedOperation operation) {
  Context& theirs = *stream.context;
  const std::lock_guard lock(theirs.mutex);
  if (theirs.sticky != cudaSuccess) return note(theirs.sticky, theirs.error);
  stream.queue.push_back(std::move(operation));
  if (config().stream_order == StreamOrder::kEager) theirs.run_eagerly(stream);
  return theirs.sticky != cudaSuccess ? note(theirs.sticky, theirs.error) : cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, const char* what, MakeOperation make) {
  if (is_default(stream)) return note(cudaErrorInvalidResourceHandle, fmt::format("{} on the default stream", what));
  if (stream->capture != nullptr) {
    Capture& capture = *stream->capture;
    if (capture.invalid != cudaSuccess) return note(capture.invalid);
    capture.nodes.push_back({std::move(make), stream->last_nodes});
    stream->last_nodes = {capture.nodes.size() - 1};
    return cudaSuccess;
  }
  return enqueue_operation(*stream, {std::move(make), nullptr, nullptr, nullptr});
}

cudaError_t enqueue_kernel(cudaStream_t stream, const KernelLaunch& launch, const std::vector<ArgumentBytes>& arguments) {
  SIMT_MAY_FAIL(cudaLaunchKernel, cudaErrorLaunchOutOfResources);
  const auto& [grid, block, shared_bytes, function, call, bound] = launch;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const bool empty = threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0;
  if (empty || threads > 1024 || block.z > 64 || grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    return note(cudaErrorInvalidConfiguration, fmt::format("launch of {} as ({},{},{}) blocks of ({},{},{}) threads",
                                                           function_name(function), grid.x, grid.y, grid.z, block.x, block.y, block.z));
  }
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, function);
  if (shared_bytes > static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes)) {
    return note(cudaErrorInvalidValue, fmt::format("launch of {} with {} bytes of dynamic shared memory; its attribute allows {}",
                                                   function_name(function), shared_bytes, attributes.maxDynamicSharedSizeBytes));
  }
  const std::string wrong = wrong_pointers(arguments);
  if (!wrong.empty()) return note(cudaErrorIllegalAddress, wrong + ": " + function_name(function));
  if (!is_default(stream) && stream->capture == nullptr) ++live_counters().launches;
  return enqueue(stream, "a kernel", [launch, arguments] { return std::make_unique<KernelOperation>(launch, arguments); });
}

cudaError_t refuse_wait_in_capture(Context& mine, const char* function) {
  const std::lock_guard lock(mine.mutex);
  if (!mine.captures()) return cudaSuccess;
  for (CUstream_st* stream : mine.streams) {
    if (stream->capture != nullptr) stream->capture->invalid = cudaErrorStreamCaptureInvalidated;
  }
  return note(cudaErrorStreamCaptureUnsupported, fmt::format("{} while a stream is captured", function));
}

cudaError_t wait_for_blocking_streams(const char* what) {
  Context& mine = context();
  return mine.wait(
      [&] {
        return std::all_of(mine.streams.begin(), mine.streams.end(),
                           [](const CUstream_st* stream) { return (stream->flags & cudaStreamNonBlocking) != 0 || stream->queue.empty(); });
      },
      what);
}

}  // namespace simt

using namespace simt;  // what follows implements C functions of CUDA

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  SIMT_MAY_FAIL(cudaStreamCreate, cudaErrorMemoryAllocation);
  Context& mine = context();
  const std::lock_guard lock(mine.mutex);
  *stream = new CUstream_st;
  (*stream)->context = shared_context();
  (*stream)->flags = flags;
  (*stream)->priority = priority;
  mine.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (is_default(stream)) return note(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Context> theirs = stream->context;
  theirs->wait([&] { return stream->queue.empty(); }, "destroying a stream");
  const std::lock_guard lock(theirs->mutex);
  std::erase(theirs->streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaStreamSynchronize, cudaErrorLaunchFailure);
  if (is_default(stream)) return wait_for_blocking_streams("cudaStreamSynchronize");
  if (stream->capture != nullptr) return refuse_wait_in_capture(*stream->context, "cudaStreamSynchronize");
  ++live_counters().synchronisations;
  return stream->context->wait([&] { return stream->queue.empty(); }, "cudaStreamSynchronize");
}

cudaError_t cudaDeviceSynchronize() {
  SIMT_MAY_FAIL(cudaDeviceSynchronize, cudaErrorLaunchFailure);
  Context& mine = context();
  if (const cudaError_t code = refuse_wait_in_capture(mine, "cudaDeviceSynchronize"); code != cudaSuccess) return code;
  ++live_counters().synchronisations;
  const auto idle = [&] { return std::all_of(mine.streams.begin(), mine.streams.end(), [](const auto* s) { return s->queue.empty(); }); };
  return mine.wait(idle, "cudaDeviceSynchronize");
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaStreamQuery, cudaErrorLaunchFailure);
  if (is_default(stream)) return cudaSuccess;
  if (stream->capture != nullptr) return refuse_wait_in_capture(*stream->context, "cudaStreamQuery");
  Context& theirs = *stream->context;
  const std::lock_guard lock(theirs.mutex);
  if (!stream->queue.empty()) theirs.step();
  if (theirs.sticky != cudaSuccess) return note(theirs.sticky, theirs.error);
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) { return *flags = stream->flags, cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { return *priority = stream->priority, cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  SIMT_MAY_FAIL(cudaEventCreate, cudaErrorMemoryAllocation);
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaEventRecord, cudaErrorLaunchFailure);
  if (is_default(stream)) return note(cudaErrorInvalidResourceHandle, "cudaEventRecord on the default stream");
  if (stream->capture != nullptr) {
    event->capture = stream->capture;
    event->nodes = stream->last_nodes;
    event->ticket = nullptr;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->ticket = std::make_shared<Ticket>();
  return enqueue_operation(*stream, {nullptr, nullptr, nullptr, event->ticket});
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  SIMT_MAY_FAIL(cudaStreamWaitEvent, cudaErrorLaunchFailure);
  if (is_default(stream)) return note(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent on the default stream");
  if (event->capture != nullptr) {  // joins the capture
    if (stream->capture != nullptr && stream->capture != event->capture) return note(cudaErrorStreamCaptureMerge);
    stream->capture = event->capture;
    for (const std::size_t node : event->nodes) {
      auto& last = stream->last_nodes;
      if (std::find(last.begin(), last.end(), node) == last.end()) last.push_back(node);
    }
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalid = cudaErrorStreamCaptureInvalidated;
    return note(cudaErrorStreamCaptureIsolation, "a captured stream waits for an event from outside of the capture");
  }
  if (event->ticket == nullptr) return cudaSuccess;  // never recorded
  return enqueue_operation(*stream, {nullptr, nullptr, event->ticket, nullptr});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  SIMT_MAY_FAIL(cudaEventQuery, cudaErrorLaunchFailure);
  if (event->capture != nullptr) return note(cudaErrorCapturedEvent);
  Context& mine = context();
  if (event->ticket != nullptr && !event->ticket->done) {
    const std::lock_guard lock(mine.mutex);
    mine.step();
  }
  if (mine.sticky != cudaSuccess) return note(mine.sticky, mine.error);
  return event->ticket == nullptr || event->ticket->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SIMT_MAY_FAIL(cudaEventSynchronize, cudaErrorLaunchFailure);
  if (event->capture != nullptr) return note(cudaErrorCapturedEvent);
  ++live_counters().synchronisations;
  const std::shared_ptr<Ticket> ticket = event->ticket;
  return context().wait([&] { return ticket == nullptr || ticket->done; }, "cudaEventSynchronize");
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from->ticket == nullptr || to->ticket == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (!from->ticket->done || !to->ticket->done) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->ticket->time - from->ticket->time).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  SIMT_MAY_FAIL(cudaLaunchHostFunc, cudaErrorLaunchFailure);
  return enqueue(stream, "a host function", call_operation("a host function", [=] {
                   function(data);
                   return std::string();
                 }));
}

}  // extern "C"
