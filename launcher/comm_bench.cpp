#include <algorithm>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "comm/measure.h"
#include "launcher/options.h"
#include "launcher/subcommands.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kSmallest = std::size_t{4} << 10, kLargest = std::size_t{64} << 20;  // bytes

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) all.push_back(bytes);
  return all;
}

/// "1234.5 (12.34)": microseconds, and GB/s of the sum.
std::string cell(double seconds, std::size_t bytes) {
  if (seconds <= 0.0) return "-";
  return fmt::format("{:.1f} ({:.2f})", 1e6 * seconds, 1e-9 * static_cast<double>(bytes) / seconds);
}

void print_table(const comm::TransportTimes& times) {
  std::string text = fmt::format("{:>10}", "bytes");
  for (const std::string& transport : times.transports) text += fmt::format("{:>22}", transport);
  text += times.transports.size() > 1 ? "  fastest\n" : "\n";
  for (std::size_t i = 0; i < times.sizes.size(); ++i) {
    std::string line = fmt::format("{:>10}", times.sizes[i]);
    std::size_t fastest = times.transports.size();
    for (std::size_t t = 0; t < times.transports.size(); ++t) {
      const double seconds = times.seconds[t][i];
      line += fmt::format("{:>22}", cell(seconds, times.sizes[i]));
      if (seconds > 0.0 && (fastest == times.transports.size() || seconds < times.seconds[fastest][i])) fastest = t;
    }
    if (fastest == times.transports.size()) break;
    text += line + (times.transports.size() > 1 ? "  " + times.transports[fastest] : "") + "\n";
  }
  print(text + "\n");
}

void print_result(const CommJob& job, const comm::TransportTimes& times) {
  if (job.config.json) {
    nlohmann::ordered_json json = {{"ranks", job.host.size()}, {"device", job.plugin != nullptr ? "cuda" : "cpu"}, {"bytes", times.sizes}};
    for (std::size_t t = 0; t < times.transports.size(); ++t) json["seconds"][times.transports[t]] = times.seconds[t];
    if (!times.table.empty()) json["table"] = times.table;
    print(json.dump() + "\n");
    return;
  }
  print(fmt::format("all_reduce of one root a rank, {} ranks: microseconds (GB/s of the sum)\n\n", job.host.size()));
  print_table(times);
  if (!times.table.empty()) print(times.table);
}

void write_table(const std::string& path, const std::string& table) {
  std::ofstream file(path, std::ios::trunc);
  file << table;
  file.close();
  if (!file) throw UsageError(fmt::format("--comm-tuning: {} can not be written", path));
}

}  // namespace

int run_comm_bench(const CommJob& job) {
  if (job.host.size() == 1) throw UsageError("bench comm needs two ranks or more: --tensor-parallel-size");
  const bool writes = !job.config.comm_tuning.empty();
  if (writes && job.plugin == nullptr) throw UsageError("--comm-tuning is about GPUs, and the ranks are on CPUs");
  const comm::TransportTimes times =
      job.plugin != nullptr ? job.plugin->measure_transports(job.host, job.gpu, sizes()) : comm::measure_transport(job.host, sizes());
  if (job.host.rank() == 0) {
    if (writes) write_table(job.config.comm_tuning, times.table);
    print_result(job, times);
  }
  job.host.barrier();
  return 0;
}

}  // namespace lockstep::launcher
