#include "launcher/mpirun.h"

#include <cstdio>
#include <utility>

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMaxBlockLines = 60;
constexpr std::size_t kMaxChatterBytes = 1 << 16;

bool is_rule(std::string_view line) { return line.size() >= 60 && line.find_first_not_of('-') == std::string_view::npos; }

}  // namespace

std::vector<std::string> mpirun_command(const MpirunOptions& options, const std::vector<std::string>& program) {
  // Ranks share out the cores among themselves, so mpirun neither binds them nor counts slots. Without CMA, Open MPI needs no right to
  // trace processes, which containers lack and which it complains about.
  std::vector<std::string> command = {options.mpirun, "-n", std::to_string(options.num_ranks), "--bind-to", "none", "--oversubscribe"};
  const auto set = [&](const char* parameter, const std::string& value) { command.insert(command.end(), {"--mca", parameter, value}); };
  if (options.root) command.emplace_back("--allow-run-as-root");
  set("mpi_yield_when_idle", options.num_ranks > options.num_cores ? "1" : "0");
  set("btl_base_warn_component_unused", "0");
  set("btl_vader_single_copy_mechanism", "none");
  if (!options.temporary_folder.empty()) set("orte_tmpdir_base", options.temporary_folder);
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::vector<std::string> ChatterFilter::take(std::string line) {
  if (block_.empty()) {
    if (!is_rule(line)) return {std::move(line)};
    block_.push_back(std::move(line));
    return {};
  }
  block_.push_back(std::move(line));
  if (is_rule(block_.back())) {
    for (const std::string& said : block_) keep(said);
    block_.clear();
  } else if (block_.size() > kMaxBlockLines) {
    return std::exchange(block_, {});  // no announcement is that long: a rank drew the line
  }
  return {};
}

void ChatterFilter::keep(const std::string& line) {
  Death death;
  const std::size_t begin = line.find("process rank ");
  if (begin != std::string::npos &&
      std::sscanf(line.c_str() + begin, "process rank %d with PID %*d on node %*s exited on signal %d", &death.rank, &death.signal) == 2) {
    death_ = death;
  }
  if (!is_rule(line) && chatter_.size() + line.size() < kMaxChatterBytes) chatter_ += line + "\n";
}

}  // namespace lockstep::launcher
