// Latency of all_reduce over the ranks of one machine, each pinned to a core. More ranks than cores measure the scheduler, not the
// transport.

#include <chrono>
#include <thread>

#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/shm.h"
#include "comm/threads.h"

namespace lockstep::comm {
namespace {

constexpr int calls_per_iteration = 10;  // short, so that some are not disturbed on a busy machine

void pin(int rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int skip = rank % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

/// Nine leaves over two ranks are 2 and 3 roots; here every rank has `roots`, added one after the other.
TreeSum chain(int ranks, std::uint32_t roots) {
  TreeSum tree;
  tree.roots_per_rank.assign(static_cast<std::size_t>(ranks), roots);
  for (std::uint32_t root = 1; root < roots * static_cast<std::uint32_t>(ranks); ++root) tree.merges.push_back({0, root});
  return tree;
}

/// Reduces as long as rank 0 says so.
void follow(Communicator& communicator, const TreeSum& tree, std::size_t count) {
  pin(communicator.rank());
  std::vector<float> values(tree.roots_per_rank[0] * count, 1.0f);
  for (std::byte go{};;) {
    communicator.broadcast({&go, 1}, 0);
    if (go == std::byte{0}) return;
    for (int call = 0; call < calls_per_iteration; ++call) communicator.all_reduce(tree, values.data(), count);
  }
}

void lead(benchmark::State& state, Communicator& communicator, const TreeSum& tree, std::size_t count) {
  std::vector<float> values(tree.roots_per_rank[0] * count, 1.0f);
  std::byte go{1};
  auto best = std::chrono::nanoseconds::max();
  for (auto _ : state) {
    communicator.broadcast({&go, 1}, 0);
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls_per_iteration; ++call) communicator.all_reduce(tree, values.data(), count);
    best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - start);
  }
  go = std::byte{0};
  communicator.broadcast({&go, 1}, 0);
  state.counters["best_us_per_call"] = static_cast<double>(best.count()) / calls_per_iteration / 1000;  // what a busy machine still shows
  state.SetBytesProcessed(state.iterations() * calls_per_iteration * static_cast<std::int64_t>(4 * count));
}

struct Setting {
  explicit Setting(const benchmark::State& state)
      : ranks(static_cast<int>(state.range(0))),
        count(static_cast<std::size_t>(state.range(1))),
        tree(chain(ranks, static_cast<std::uint32_t>(state.range(2)))) {
    options.slice_from_additions = state.range(3) != 0 ? 0 : std::size_t{1} << 40;
  }
  int ranks;
  std::size_t count;
  TreeSum tree;
  CommunicatorOptions options;
};

void all_reduce_threads(benchmark::State& state) {
  const Setting setting(state);
  auto communicators = make_thread_communicators(setting.ranks, setting.options);
  std::vector<std::thread> peers;
  for (std::size_t rank = 1; rank < communicators.size(); ++rank) {
    peers.emplace_back([&, rank] { follow(*communicators[rank], setting.tree, setting.count); });
  }
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  pin(0);
  lead(state, *communicators[0], setting.tree, setting.count);
  for (std::thread& peer : peers) peer.join();
  sched_setaffinity(0, sizeof before, &before);
}

void all_reduce_shm(benchmark::State& state) {
  const Setting setting(state);
  const ShmRegion region(setting.ranks, setting.options);
  std::vector<pid_t> peers;
  for (int rank = 1; rank < setting.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        follow(*make_shm_communicator(region.name(), rank, setting.ranks, setting.options), setting.tree, setting.count);
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    peers.push_back(child);
  }
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  pin(0);
  lead(state, *make_shm_communicator(region.name(), 0, setting.ranks, setting.options), setting.tree, setting.count);
  for (const pid_t peer : peers) waitpid(peer, nullptr, 0);
  sched_setaffinity(0, sizeof before, &before);
}

void settings(benchmark::internal::Benchmark* each) {
  each->ArgNames({"ranks", "count", "roots", "sliced"})->UseRealTime();
  for (const std::int64_t count : {1, 576, 4096, 32768, 262144}) {
    each->Args({2, count, 1, 0});
    each->Args({2, count, 3, 0});
    each->Args({2, count, 3, 1});
  }
  each->Args({4, 576, 1, 0});
}
BENCHMARK(all_reduce_threads)->Apply(settings);
BENCHMARK(all_reduce_shm)->Apply(settings);

}  // namespace
}  // namespace lockstep::comm
