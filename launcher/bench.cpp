#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "device/cpu/cpu_device.h"
#include "device/cpu/probe.h"
#include "launcher/session_options.h"
#include "launcher/subcommands.h"
#include "parallel/plan.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Bytes of weights, as stored, that a rank reads for each token: every matrix but the embedding, of which a token needs one row.
std::size_t streamed_bytes(const parallel::RankGraph& graph) {
  std::set<std::size_t> used;
  for (const parallel::RankNode& node : graph.nodes) {
    if (node.op == parallel::RankOp::kLinear) used.insert(node.weight);
  }
  std::size_t bytes = 0;
  for (const std::size_t weight : used) {
    const device::WeightSpec& spec = graph.weights[weight].spec;
    bytes += spec.rows * device::row_bytes(spec.dtype, spec.columns);
  }
  return bytes;
}

class Bench {
 public:
  explicit Bench(const Job& job) : job_(job), engine_(job.session.engine()) {}

  /// Tokens a second of prompts that are computed alone.
  double prefill() {
    return measure([&] {
      submit(input_len(), 1);
      const auto start = Clock::now();
      run();
      return static_cast<double>(input_len()) / seconds_since(start);
    });
  }

  /// Tokens a second of one sequence, its prompt left out.
  double decode() {
    return measure([&] {
      submit(kDecodePrompt, output_len() + 1);
      while (engine_.counters().generated_tokens == generated_) engine_.step();
      generated_ = engine_.counters().generated_tokens;
      const auto start = Clock::now();
      const std::uint64_t tokens = run();
      return static_cast<double>(tokens) / seconds_since(start);
    });
  }

  /// Generated tokens a second of many sequences, prompts included.
  double batch() {
    return measure([&] {
      for (std::int64_t i = 0; i < job_.config.num_prompts; ++i) submit(input_len(), output_len());
      const auto start = Clock::now();
      const std::uint64_t tokens = run();
      return static_cast<double>(tokens) / seconds_since(start);
    });
  }

  /// Positions in the cache that a token of decode() reads, on average.
  std::size_t decode_context() const { return kDecodePrompt + output_len() / 2; }
  bool stopped() const { return job_.control.stop_requested(); }

 private:
  static constexpr std::size_t kDecodePrompt = 16;

  std::size_t input_len() const { return static_cast<std::size_t>(job_.config.input_len); }
  std::size_t output_len() const { return static_cast<std::size_t>(job_.config.output_len); }

  template <class Run>
  double measure(const Run& once) {
    std::vector<double> results;
    for (std::int64_t i = 0; i < job_.config.warmup + job_.config.iterations; ++i) {
      const double result = once();
      if (i >= job_.config.warmup) results.push_back(result);
      if (stopped()) break;
    }
    return results.empty() ? 0.0 : median(std::move(results));
  }

  /// Prompts differ from each other, and are the same in each run.
  void submit(std::size_t prompt_len, std::size_t max_tokens) {
    engine::Request request;
    request.id = ++last_id_;
    const auto vocab_size = static_cast<std::uint64_t>(job_.session.spec().vocab_size);
    for (std::size_t i = 0; i < prompt_len; ++i)
      request.prompt.push_back(static_cast<engine::TokenId>((i * 7919 + last_id_ * 104729) % vocab_size));
    request.sampling.temperature = 0.0f;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = static_cast<std::uint32_t>(max_tokens);
    engine_.submit(std::move(request), [](engine::Completion&&) {});
    generated_ = engine_.counters().generated_tokens;
  }

  /// To the end; returns the tokens that were generated.
  std::uint64_t run() {
    while (engine_.step()) {
      if (stopped()) engine_.cancel_all();
    }
    return engine_.counters().generated_tokens - generated_;
  }

  const Job& job_;
  engine::Engine& engine_;
  std::uint64_t generated_ = 0;
  engine::RequestId last_id_ = 0;
};

/// What the ranks stream for a token.
struct Streamed {
  std::size_t total = 0;  // a KV head that two ranks hold counts twice
  double bound = 1.0;     // even share of the model / largest share: what N ranks can be at most, in parts of N times one
};

Streamed streamed_by_all(const parallel::Graph& graph, std::size_t num_ranks) {
  Streamed streamed;
  std::size_t largest = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const std::size_t bytes = streamed_bytes(parallel::plan(graph, rank, num_ranks, device::cpu_activation_for));
    streamed.total += bytes;
    largest = std::max(largest, bytes);
  }
  streamed.bound = static_cast<double>(streamed_bytes(parallel::plan(graph, 0, 1, device::cpu_activation_for))) /
                   static_cast<double>(largest * num_ranks);
  return streamed;
}

}  // namespace

int run_bench(const Job& job) {
  const RunConfig& config = job.config;
  const std::size_t needed = static_cast<std::size_t>(config.input_len + config.output_len);
  if (needed > job.session.engine().limits().max_model_len) {
    throw engine::UsageError(fmt::format("--input-len and --output-len are {} tokens together; the model and its cache take {}", needed,
                                         job.session.engine().limits().max_model_len));
  }
  const auto num_ranks = static_cast<std::size_t>(job.num_ranks);
  const parallel::Graph graph = engine::graph_of(job.session.model(), weight_dtype(config));
  const Streamed streamed = streamed_by_all(graph, num_ranks);
  Bench bench(job);
  const std::size_t kv_bytes = job.session.kv_token_bytes() * bench.decode_context();
  // Measured right before and after what is held against it: the machine may be shared.
  const std::size_t all_threads = job.num_threads * num_ranks;
  const double bandwidth_before = device::measure_read_bandwidth(all_threads);
  const double decode = bench.decode();
  const double bandwidth = std::max(bandwidth_before, device::measure_read_bandwidth(all_threads));
  const double prefill = bench.prefill();
  const double batch = bench.batch();
  if (bench.stopped()) return 128 + job.control.stop_signal();
  const double token_bytes = static_cast<double>(streamed.total + kv_bytes);
  const double roofline = decode * token_bytes / bandwidth;
  if (config.json) {
    const nlohmann::ordered_json json = {
        {"model", config.model},          {"ranks", job.num_ranks},        {"threads_per_rank", job.num_threads},
        {"device", job.device},           {"dtype", config.dtype},         {"kv_dtype", job.session.kv_type()},
        {"in_len", config.input_len},     {"out_len", config.output_len},  {"batch", config.num_prompts},
        {"prefill_tok_s", prefill},       {"decode_tok_s", decode},        {"batch_tok_s", batch},
        {"bytes_per_token", token_bytes}, {"memory_bandwidth", bandwidth}, {"share_of_roofline", roofline},
        {"plan_bound", streamed.bound}};
    print(json.dump() + "\n");
    return 0;
  }
  print(fmt::format("{}\n{} rank{}, {}\n\n", job.session.model().description, job.num_ranks, job.num_ranks == 1 ? "" : "s", job.device));
  print(fmt::format("prefill  {:10.1f} tok/s   {} tokens\n", prefill, config.input_len));
  print(fmt::format("decode   {:10.1f} tok/s   one sequence, {} tokens\n", decode, config.output_len));
  print(fmt::format("batch    {:10.1f} tok/s   {} sequences, {} + {} tokens, generated ones counted\n\n", batch, config.num_prompts,
                    config.input_len, config.output_len));
  print(fmt::format("decode reads {:.1f} MB a token, {:.1f} GB/s; this machine gives {:.1f} GB/s to {} threads: {:.0f} % of the roofline\n",
                    token_bytes * 1e-6, decode * token_bytes * 1e-9, bandwidth * 1e-9, all_threads, 100.0 * roofline));
  print(fmt::format("even share / largest share of the plan: {:.3f}\n", streamed.bound));
  return 0;
}

}  // namespace lockstep::launcher
