#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "launcher/subcommands.h"

namespace lockstep::launcher {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The value below which the share `part` of `values` lies; 0.5 is the median. 0 for none.
inline double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

/// Lengths of a request, in tokens.
struct RequestLengths {
  std::size_t prompt = 0;
  std::size_t output = 0;
};

/// Requests of random tokens, the same in every run, that generate just as many tokens as they are told, greedily.
class BenchRequests {
 public:
  explicit BenchRequests(const Job& job) : job_(job), engine_(job.session.engine()) {}

  /// Prompts differ from each other.
  void submit(const RequestLengths& lengths);
  /// Runs what was submitted until every sequence has its first token. Returns the tokens generated so far.
  std::uint64_t run_to_first_tokens(std::size_t num_sequences);
  /// To the end, or to a stop signal; returns the tokens that were generated since the first submit() behind the last run().
  std::uint64_t run();
  bool stopped() const { return job_.control.stop_requested(); }
  const engine::Engine& engine() const { return engine_; }

 private:
  const Job& job_;
  engine::Engine& engine_;
  std::uint64_t generated_ = 0;  // when the first request of this run was submitted
  engine::RequestId last_id_ = 0;
};

/// `count` lengths about those that are given: each drawn evenly from [(1 - ratio) n, (1 + ratio) n] and at least 1, the same in every
/// run and on every machine. Ratio 0: all as they are given.
std::vector<RequestLengths> mixed_lengths(std::size_t count, const RequestLengths& mean, double ratio);

/// `lockstep bench latency` and `lockstep bench throughput` on rank 0. They return the exit code.
int run_latency_bench(const Job& job);
int run_throughput_bench(const Job& job);

/// What the process has in memory now, in bytes; 0 where the system does not tell.
std::size_t resident_bytes();

}  // namespace lockstep::launcher
