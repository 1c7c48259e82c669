#include "comm/cuda/measure.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "comm/cuda/tuning.h"
#include "device/cuda/error.h"
#include "device/cuda/memory.h"

namespace lockstep::comm::cuda {
namespace {

using device::cuda::check;
using device::cuda::CudaDevice;
using device::cuda::DeviceMemory;

constexpr Transport kTransports[] = {Transport::kOneShot, Transport::kTwoShot, Transport::kNcclGather, Transport::kNcclSlices};
constexpr const char* kFast = "ncclAllReduce";
constexpr double kWorthwhile = 0.97;  // of the time before: less gain than that is noise

/// The communicator that is measured, watched while the host waits for it.
class Watched {
 public:
  Watched(Communicator& host, CudaDevice& device, const CudaCommunicatorOptions& options)
      : device_(device), communicator_(make_cuda_communicator(host, options)) {
    device_.set_watch([this](std::chrono::steady_clock::duration waited) { communicator_->waiting(waited); });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() { device_.set_watch({}); }
  CudaCommunicator& operator*() const { return *communicator_; }

 private:
  CudaDevice& device_;
  std::unique_ptr<CudaCommunicator> communicator_;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "creating an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Measurement {
 public:
  Measurement(Communicator& host, CudaDevice& device, const std::vector<std::size_t>& sizes)
      : host_(host),
        device_(device),
        sizes_(sizes),
        tree_(one_root_each(host.size())),
        values_(sizes.back(), "the sums that are measured") {
    check(cudaMemsetAsync(values_.data(), 0, values_.size_bytes(), device.stream()), "clearing memory");  // sums of zeros stay zeros
  }

  std::vector<double> times(CudaCommunicator& communicator) {
    return measure_sizes(host_, sizes_, [&](std::size_t count, int calls) {
      check(cudaEventRecord(from_.get(), device_.stream()), "recording an event");
      for (int call = 0; call < calls; ++call) communicator.all_reduce(tree_, values_.as<float>(), count);
      check(cudaEventRecord(to_.get(), device_.stream()), "recording an event");
      device_.synchronize();
      float milliseconds = 0.0f;
      check(cudaEventElapsedTime(&milliseconds, from_.get(), to_.get()), "asking for the time between events");
      return 1e-3 * static_cast<double>(milliseconds);
    });
  }

 private:
  Communicator& host_;
  CudaDevice& device_;
  const std::vector<std::size_t>& sizes_;
  TreeSum tree_;
  DeviceMemory values_;
  Event from_, to_;
};

}  // namespace

TransportTimes measure_transports(Communicator& host, CudaDevice& device, CudaCommunicatorOptions options,
                                  const std::vector<std::size_t>& sizes) {
  TransportTimes times{.sizes = sizes};
  Measurement measurement(host, device, sizes);
  options.tuning.clear();
  for (const Transport transport : kTransports) {
    if (options.share_gpu && !needs_mapped_memory(transport)) continue;  // NCCL wants a GPU for each rank
    options.table = TransportTable{{{0, transport}}};
    const Watched watched(host, device, options);
    if (!((*watched).table() == *options.table)) continue;  // these ranks can not map each other's memory
    times.transports.emplace_back(name_of(transport));
    times.seconds.push_back(measurement.times(*watched));
  }
  if (!options.share_gpu) {
    options.fast = true;
    const Watched watched(host, device, options);
    times.transports.emplace_back(kFast);
    times.seconds.push_back(measurement.times(*watched));
  }
  times.table = format_table(fastest_table(times, static_cast<std::size_t>(host.size())),
                             std::to_string(host.size()) + " ranks, " + device.description() + ", measured by lockstep bench comm");
  return times;
}

TransportTable fastest_table(const TransportTimes& times, std::size_t roots) {
  TransportTable table;
  const auto seconds = [&](std::string_view name, std::size_t size) {
    const auto found = std::find(times.transports.begin(), times.transports.end(), name);
    return found == times.transports.end() ? 0.0 : times.seconds[static_cast<std::size_t>(found - times.transports.begin())][size];
  };
  for (std::size_t size = 0; size < times.sizes.size(); ++size) {
    std::optional<Transport> best;
    for (const Transport transport : kTransports) {
      const double time = seconds(name_of(transport), size);
      if (time > 0.0 && (!best || time < seconds(name_of(*best), size))) best = transport;
    }
    if (!best) continue;
    if (table.entries.empty()) {
      table.entries.push_back({0, *best});
      continue;
    }
    const double before = seconds(name_of(table.entries.back().transport), size);
    if (before > 0.0 && seconds(name_of(*best), size) > kWorthwhile * before) continue;
    if (*best != table.entries.back().transport) table.entries.push_back({times.sizes[size] * roots, *best});
  }
  return table;
}

}  // namespace lockstep::comm::cuda
