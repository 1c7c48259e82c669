#include "launcher/rank.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/self_check.h"
#include "comm/threads.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/placement.h"
#include "device/cpu/processors.h"
#include "engine/session.h"
#include "launcher/control_protocol.h"
#include "launcher/device_choice.h"
#include "launcher/generate.h"
#include "launcher/log.h"
#include "launcher/reporting_communicator.h"
#include "launcher/session_options.h"
#include "launcher/subcommands.h"
#include "launcher/world.h"

namespace lockstep::launcher {
namespace {

/// Begins the reason of an abort for what the user has to change, so that every rank exits with 2.
constexpr std::string_view kRefused = "can not run: ";

/// What is wrong with the setup is so on every rank, and rank 0 tells of it; but mpirun ends all ranks as soon as the first has left with
/// an error.
constexpr std::chrono::milliseconds kLetRankZeroSpeak{500};

/// What a rank needs besides its communicator.
struct RankContext {
  const RunConfig& config;
  RankControl& control;
  spdlog::logger& log;
  int local_rank = 0;
  int local_ranks = 1;
  device::Placement placement;
  std::vector<int> processors;  // that this rank might run on before it was bound
};

std::chrono::milliseconds deadline_of(const RunConfig& config) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(config.collective_timeout * 1000.0));
}

int run_subcommand(const Job& job) {
  switch (job.config.subcommand) {
    case Subcommand::kBatch: return run_batch_job(job);
    case Subcommand::kBench: return run_bench(job);
    case Subcommand::kScore: return run_score_job(job);
    case Subcommand::kGenerate:
      return generate(job.config, job.session, print, job.control.stop_requested()) ? 0 : 128 + job.control.stop_signal();
    case Subcommand::kInspect:
    case Subcommand::kQuantize: break;
  }
  throw std::logic_error("this subcommand needs no ranks");
}

/// One sentence about `error`, and the exit code that belongs to it.
struct Failure {
  int exit_code = 1;
  std::string message;
  bool from_peer = false;
};

/// @param in_setup nothing was computed yet: whatever is wrong is in what the user gave.
Failure describe(const std::exception& error, bool in_setup) {
  Failure failure{.exit_code = 1, .message = error.what(), .from_peer = dynamic_cast<const comm::CommError*>(&error) != nullptr};
  const bool is_usage = dynamic_cast<const UsageError*>(&error) != nullptr;
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (is_memory) failure.message = "there is not enough memory";
  if (failure.from_peer) {
    const std::size_t refused = failure.message.find(kRefused);
    if (refused != std::string::npos) {
      failure.exit_code = 2;
      failure.message.erase(refused, kRefused.size());
    }
  } else if (is_usage || (in_setup && !is_memory)) {
    failure.exit_code = 2;
  }
  return failure;
}

void report(const Failure& failure, const RankContext& context, int rank, bool in_setup) {
  // Peers only repeat the first reason; what goes wrong in the setup does so on every rank, and rank 0 hears of what does not.
  const bool tells = rank == 0 || (failure.from_peer ? failure.message.find("rank 0 ") != std::string::npos : !in_setup);
  context.log.log(tells ? spdlog::level::err : spdlog::level::debug, "{}", failure.message);
}

/// The plug-in if the ranks run on GPUs, else null: all ranks agree before any weight is read. Collective.
const comm::CudaPlugin* agreed_plugin(const RunConfig& config, comm::Communicator& communicator) {
  const GpuFinding finding = find_gpus(config);
  if (agree_on_gpus(config, finding, communicator)) return finding.plugin;
  if (config.reduction == "fast") throw UsageError("--reduction fast needs GPUs, and there are none");
  return nullptr;
}

comm::CudaRankOptions gpu_options(const RankContext& context) {
  const RunConfig& config = context.config;
  return {.local_rank = context.local_rank,
          .local_size = context.local_ranks,
          .allow_shared_gpu = config.allow_shared_gpu,
          .graphs = !config.enforce_eager,
          .fast = config.reduction == "fast",
          .host_threads = context.placement.num_threads,
          .deadline = deadline_of(config),
          .tuning = config.comm_tuning};
}

/// What the ranks compute on, and how they talk about it.
struct Devices {
  const comm::CudaPlugin* plugin = nullptr;  // null: on the CPU
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::Communicator> between_gpus;  // absent on the CPU: host memory is what the communicator is about
};

/// Collective.
Devices open_devices(const RankContext& context, const comm::CudaPlugin* plugin, comm::Communicator& communicator) {
  if (plugin == nullptr) {
    return {nullptr,
            device::make_cpu_device({.num_threads = context.placement.num_threads,
                                     .isa = instruction_set(context.config),
                                     .processors = context.placement.processors,
                                     .own_processors = context.placement.own_processors}),
            nullptr};
  }
  comm::CudaRank rank = plugin->open_rank(communicator, gpu_options(context));
  return {plugin, std::move(rank.device), std::move(rank.communicator)};
}

Job make_job(const RankContext& context, const Devices& devices, engine::Session& session, int num_ranks) {
  Job job{.config = context.config,
          .session = session,
          .control = context.control,
          .log = context.log,
          .num_ranks = num_ranks,
          .num_threads = context.placement.num_threads,
          .processors = context.processors,
          .device = devices.device->description(),
          .numerics = devices.device->numerics(),
          .measure_bandwidth = {},
          .measure_peak_flops = {}};
  if (devices.plugin == nullptr) return job;
  // The ranks have GPUs of one kind: what that of rank 0 gives is what each gives.
  const auto of_all = [num_ranks, device = devices.device.get()](double (*measure)(device::Device&)) {
    return [=] { return num_ranks * measure(*device); };
  };
  job.measure_bandwidth = of_all(devices.plugin->measure_bandwidth);
  job.measure_peak_flops = of_all(devices.plugin->measure_peak_flops);
  return job;
}

/// The whole life of one rank. Returns the exit code, agreed by all ranks if nothing failed. `failed` is set if the communicator can not be
/// used any more.
int run_rank(const RankContext& context, comm::Communicator& host, bool& failed) {
  const RunConfig& config = context.config;
  const bool is_root = host.rank() == 0;
  bool in_setup = true;
  Devices devices;
  const auto group = [&]() -> comm::Communicator& { return devices.between_gpus ? *devices.between_gpus : host; };
  try {
    if (is_root) check_files(config);
    comm::check_transport(host);
    const comm::CudaPlugin* plugin = agreed_plugin(config, host);
    if (config.bench == BenchKind::kComm) {
      in_setup = false;
      return run_comm_bench({.config = config, .host = host, .plugin = plugin, .gpu = gpu_options(context)});
    }
    devices = open_devices(context, plugin, host);
    comm::Communicator& communicator = group();
    const device::Device& device = *devices.device;
    const auto start = std::chrono::steady_clock::now();
    engine::Session session(session_options(config, static_cast<std::size_t>(context.local_ranks), device.free_bytes() > 0),
                            *devices.device, communicator);
    in_setup = false;
    std::int32_t exit_code = 0;
    if (is_root) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      context.log.debug("{}; {}; {} MB of weights, {} tokens of KV cache, ready in {:.2f} s", session.model().description,
                        device.description(), session.weight_bytes() >> 20, session.kv_tokens(), seconds.count());
      exit_code = run_subcommand(make_job(context, devices, session, communicator.size()));
      session.stop();
    } else {
      session.serve();
    }
    communicator.broadcast(std::as_writable_bytes(std::span(&exit_code, 1)), 0);
    communicator.barrier();
    return exit_code;
  } catch (const std::exception& error) {
    failed = true;
    const Failure failure = describe(error, in_setup);
    group().abort(failure.exit_code == 2 && !failure.from_peer ? std::string(kRefused) + failure.message : failure.message);
    report(failure, context, host.rank(), in_setup);
    return failure.exit_code;
  }
}

/// Threads and cores of one of `sharers` ranks that may run on the same processors as this thread.
device::Placement place(const RunConfig& config, int index, int sharers) {
  device::PlacementRequest request{.rank = static_cast<std::size_t>(index),
                                   .num_ranks = static_cast<std::size_t>(sharers),
                                   .threads = static_cast<std::size_t>(config.threads),
                                   .quota = device::quota_processors()};
  device::Placement placement = device::place_rank(device::usable_cores(), request);
  if (config.bind == "none") placement.processors.clear();
  return placement;
}

std::vector<int> usable_processor_ids() {
  std::vector<int> ids;
  for (const device::Core& core : device::usable_cores()) ids.insert(ids.end(), core.processors.begin(), core.processors.end());
  return ids;
}

void warn_of_one_core(const World& world, spdlog::logger& log) {
  const auto online = static_cast<std::size_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  if (device::usable_processors() == 1 && online > 1 && world.rank() == 0)
    log.warn("each rank may only use one core of {} (mpirun --bind-to none gives it more)", online);
}

void warn_of_too_many_threads(const RunConfig& config, const device::Placement& placement, spdlog::logger& log) {
  const std::size_t taken = placement.num_threads;
  if (static_cast<std::size_t>(config.threads) > taken)
    log.warn("--threads {}: rank 0 has processors for {}, and takes no more", config.threads, taken);
}

int run_threads(const RankContext& context) {
  const auto size = static_cast<int>(context.config.tensor_parallel_size);
  comm::CommunicatorOptions options;
  options.deadline = deadline_of(context.config);
  std::vector<device::Placement> placements;  // before any thread is bound
  placements.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) placements.push_back(place(context.config, rank, size));
  options.own_processors =
      std::all_of(placements.begin(), placements.end(), [](const device::Placement& each) { return each.own_processors; });
  warn_of_too_many_threads(context.config, placements.front(), context.log);
  auto communicators = comm::make_thread_communicators(size, options);
  std::vector<int> exit_codes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  const auto run = [&](std::size_t rank) {
    bool failed = false;
    RankContext own = context;
    own.local_rank = static_cast<int>(rank);
    own.placement = placements[rank];
    exit_codes[rank] = run_rank(own, *communicators[rank], failed);
  };
  for (std::size_t rank = 1; rank < exit_codes.size(); ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return exit_codes.front();
}

/// With the rank's MPI, if it has any. `failed`: MPI can not be left in order.
int run_process(const RunConfig& config, const RankEnvironment& ranks, RankControl& control, spdlog::logger& log, bool& failed) {
  control.set_phase("start MPI");
  World world(config, ranks);
  const std::string kind = choose_communicator(config.comm, world.size(), world.local_size());
  const int thread_ranks = kind == "threads" ? static_cast<int>(config.tensor_parallel_size) : 1;
  const RankContext context{.config = config,
                            .control = control,
                            .log = log,
                            .local_rank = world.local_rank(),
                            .local_ranks = world.local_size() * thread_ranks,
                            .placement = place(config, world.index_among_sharers(), world.ranks_that_share_cores()),
                            .processors = usable_processor_ids()};
  if (config.threads == 0) warn_of_one_core(world, log);
  if (kind == "threads") return run_threads(context);
  if (world.rank() == 0) warn_of_too_many_threads(config, context.placement, log);
  int exit_code = 0;
  {
    control.set_phase("connect ranks");
    comm::CommunicatorOptions options;
    options.deadline = deadline_of(config);
    options.own_processors = context.placement.own_processors;
    ReportingCommunicator communicator(world.make_communicator(kind, options), control);
    exit_code = run_rank(context, communicator, failed);
    if (failed && world.size() > 1) {
      if (world.rank() != 0) std::this_thread::sleep_for(kLetRankZeroSpeak);
      control.finish(exit_code);
      _exit(exit_code);
    }
  }
  world.finalize();
  return exit_code;
}

}  // namespace

int run_ranks(const RunConfig& config, const RankEnvironment& ranks, const Environment& environment,
              const std::shared_ptr<Terminal>& terminal) {
  if (ranks.started_by == "mpirun")
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // mpirun, or its daemon, started this process: without it nobody would end a stuck rank
  const bool alone = ranks.size <= 1;
  const auto log = make_logger(terminal, alone ? std::nullopt : std::optional(ranks.rank), config.log_level);
  const char* socket_path = environment(control::kEnvironmentVariable.data());
  const bool watched = !alone && socket_path != nullptr && *socket_path != 0;
  RankControl control({.rank = ranks.rank,
                       .size = std::max(ranks.size, 1),
                       .socket_path = watched ? socket_path : "",
                       .terminal = watched || ranks.rank != 0 ? nullptr : terminal.get()});
  bool failed = false;
  int exit_code = 0;
  try {
    exit_code = run_process(config, ranks, control, *log, failed);
  } catch (const std::exception& error) {
    const Failure failure = describe(error, true);
    exit_code = failure.exit_code;
    if (ranks.rank == 0 || failure.from_peer) log->error("{}", failure.message);
    if (!alone) {
      control.finish(exit_code);
      _exit(exit_code);
    }
  }
  control.finish(exit_code);
  return exit_code;
}

}  // namespace lockstep::launcher
