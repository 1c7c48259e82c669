#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "simt/runtime.h"

/// Settings, counters, ordered failures.
namespace simt {

namespace {

struct OrderedFailure {
  std::string function;
  int calls_left;
  int code;
};

struct OrderedFailures {
  std::mutex mutex;
  std::vector<OrderedFailure> list;
  std::atomic<int> count = 0;
};

/// Of kernels; open addressing, so that ranks need no lock between them: a sanitizer would take it for order.
struct KernelCount {
  std::atomic<const void*> function;
  std::atomic<std::uint64_t> runs;
};
std::array<KernelCount, 4096> kernel_counts;

OrderedFailures& ordered_failures() {
  static OrderedFailures failures;
  return failures;
}

template <class T>
void read_number(const char* name, T& value) {
  if (const char* text = std::getenv(name); text != nullptr) value = static_cast<T>(std::strtod(text, nullptr));
}

template <class T>
void read_choice(const char* name, std::initializer_list<std::pair<std::string_view, T>> choices, T& value) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  for (const auto& [word, choice] : choices) {
    if (word == text) {
      value = choice;
      return;
    }
  }
  throw std::invalid_argument(fmt::format("{}={}: not one of its values", name, text));
}

Config config_of_environment() {
  Config config;
  read_choice<Schedule>("SIMT_SCHEDULE",
                        {{"forward", Schedule::kForward},
                         {"reverse", Schedule::kReverse},
                         {"random", Schedule::kRandom},
                         {"one-warp-first", Schedule::kOneWarpFirst}},
                        config.schedule);
  read_choice<StreamOrder>("SIMT_STREAM_ORDER",
                           {{"eager", StreamOrder::kEager},
                            {"lazy", StreamOrder::kLazy},
                            {"last-first", StreamOrder::kLastFirst},
                            {"random", StreamOrder::kRandom}},
                           config.stream_order);
  read_choice<GraphOrder>("SIMT_GRAPH_ORDER", {{"captured", GraphOrder::kCaptured}, {"random", GraphOrder::kRandom}}, config.graph_order);
  read_number("SIMT_SEED", config.seed);
  read_choice<bool>("SIMT_SHUFFLE_BLOCKS", {{"0", false}, {"1", true}}, config.shuffle_blocks);
  read_number("SIMT_RESIDENT_BLOCKS", config.resident_blocks);
  read_number("SIMT_MEMORY_BYTES", config.memory_bytes);
  read_number("SIMT_DEVICES", config.device_count);
  read_number("SIMT_MULTIPROCESSORS", config.multiprocessors);
  read_number("SIMT_WATCHDOG_SECONDS", config.watchdog_seconds);
  return config;
}

/// SIMT_FAIL=cudaMalloc:3,ncclAllReduce:1
void order_failures_of_environment() {
  const char* text = std::getenv("SIMT_FAIL");
  for (std::string_view rest = text == nullptr ? "" : text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t colon = item.find(':');
    const int nth = colon == std::string_view::npos ? 1 : std::atoi(std::string(item.substr(colon + 1)).c_str());
    fail_call(std::string(item.substr(0, colon)), nth);
  }
}

}  // namespace

Config& config() {
  static Config config = [] {
    order_failures_of_environment();
    return config_of_environment();
  }();
  return config;
}

LiveCounters& live_counters() {
  static LiveCounters counters{};
  return counters;
}

void count_kernel(const void* function) {
  const std::size_t hash = reinterpret_cast<std::uintptr_t>(function) / 16;
  for (std::size_t i = 0; i < kernel_counts.size(); ++i) {
    KernelCount& entry = kernel_counts[(hash + i) % kernel_counts.size()];
    const void* expected = nullptr;
    if (entry.function.compare_exchange_strong(expected, function) || expected == function) {
      ++entry.runs;
      return;
    }
  }
}

Counters counters() {
  const LiveCounters& live = live_counters();
  Counters copy;
  copy.launches = live.launches;
  copy.graph_launches = live.graph_launches;
  copy.host_to_device = live.host_to_device;
  copy.device_to_host = live.device_to_host;
  copy.device_to_device = live.device_to_device;
  copy.pageable_copies = live.pageable_copies;
  copy.synchronisations = live.synchronisations;
  copy.allocations = live.allocations;
  copy.collectives = live.collectives;
  copy.matmuls = live.matmuls;
  copy.barriers = live.barriers;
  copy.warp_collectives = live.warp_collectives;
  copy.ldmatrix = live.ldmatrix;
  copy.ldmatrix_conflicts = live.ldmatrix_conflicts;
  for (const KernelCount& entry : kernel_counts) {
    if (entry.function != nullptr && entry.runs > 0) copy.kernels[function_name(entry.function)] += entry.runs;
  }
  return copy;
}

void fail_call(const std::string& function, int nth, int code) {
  OrderedFailures& failures = ordered_failures();
  const std::lock_guard lock(failures.mutex);
  failures.list.push_back({function, nth, code});
  failures.count = static_cast<int>(failures.list.size());
}

int injected_failure(const char* function, int default_code) {
  static_cast<void>(config());  // the environment's failures
  OrderedFailures& failures = ordered_failures();
  if (failures.count == 0) return 0;
  const std::lock_guard lock(failures.mutex);
  int code = 0;
  for (OrderedFailure& failure : failures.list) {
    if (failure.function == function && --failure.calls_left == 0) code = failure.code != 0 ? failure.code : default_code;
  }
  std::erase_if(failures.list, [](const OrderedFailure& failure) { return failure.calls_left <= 0; });
  failures.count = static_cast<int>(failures.list.size());
  return code;
}

std::string last_error() { return context().error; }

void reset() {
  OrderedFailures& failures = ordered_failures();
  {
    const std::lock_guard lock(failures.mutex);
    failures.list.clear();
    failures.count = 0;
  }
  config() = config_of_environment();
  LiveCounters& live = live_counters();
  for (auto* counter : {&live.launches, &live.graph_launches, &live.host_to_device, &live.device_to_host, &live.device_to_device,
                        &live.pageable_copies, &live.synchronisations, &live.allocations, &live.collectives, &live.matmuls, &live.barriers,
                        &live.warp_collectives, &live.ldmatrix, &live.ldmatrix_conflicts}) {
    *counter = 0;
  }
  for (KernelCount& entry : kernel_counts) entry.runs = 0;
  Context& mine = context();
  const std::lock_guard lock(mine.mutex);
  mine.last = mine.sticky = cudaSuccess;
  mine.error.clear();
}

}  // namespace simt
