#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "device/cpu/cpu_device.h"
#include "device/cpu/probe.h"
#include "launcher/bench_requests.h"
#include "launcher/session_options.h"
#include "launcher/subcommands.h"
#include "parallel/plan.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of weights, as stored, that a rank reads for each token: every matrix but the embedding, of which a token needs one row.
std::size_t streamed_bytes(const parallel::RankGraph& graph) {
  std::set<std::size_t> used;
  for (const parallel::RankNode& node : graph.nodes) {
    if (node.op == parallel::RankOp::kLinear) used.insert(node.weight);
  }
  std::size_t bytes = 0;
  for (const std::size_t weight : used) {
    const device::WeightSpec& spec = graph.weights[weight].spec;
    bytes += spec.rows * spec.stored_row_bytes();
  }
  return bytes;
}

class Bench {
 public:
  explicit Bench(const Job& job) : job_(job), requests_(job) {}

  /// Tokens a second of prompts that are computed alone.
  double prefill() {
    return measure([&] {
      requests_.submit({input_len(), 1});
      const auto start = Clock::now();
      requests_.run();
      return static_cast<double>(input_len()) / seconds_since(start);
    });
  }

  /// Tokens a second of one sequence, its prompt left out.
  double decode() {
    return measure([&] {
      requests_.submit({kDecodePrompt, output_len() + 1});
      const std::uint64_t before = requests_.run_to_first_tokens(1);
      const auto start = Clock::now();
      const std::uint64_t tokens = requests_.run() - before;
      return static_cast<double>(tokens) / seconds_since(start);
    });
  }

  /// Generated tokens a second of many sequences, prompts included.
  double batch() {
    return measure([&] {
      for (std::int64_t i = 0; i < job_.config.num_prompts; ++i) requests_.submit({input_len(), output_len()});
      const auto start = Clock::now();
      const std::uint64_t tokens = requests_.run();
      return static_cast<double>(tokens) / seconds_since(start);
    });
  }

  /// Positions in the cache that a token of decode() reads, on average.
  std::size_t decode_context() const { return kDecodePrompt + output_len() / 2; }
  bool stopped() const { return requests_.stopped(); }

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
    return quantile(std::move(results), 0.5);
  }

  const Job& job_;
  BenchRequests requests_;
};

/// What the ranks have to do, all of them together.
struct Work {
  std::size_t streamed = 0;   // bytes of weights for a token; a KV head that two ranks hold counts twice
  double bound = 1.0;         // even share of the model / largest share: what N ranks can be at most, in parts of N times one
  double prompt_flops = 0.0;  // of a prompt
};

/// Multiplications and additions of a prompt that is computed alone: products with weights (the head for one token), scores and values.
double prompt_flops(const parallel::RankGraph& graph, const engine::ModelSpec& spec, std::size_t num_ranks, std::size_t tokens) {
  double multiplications = 0.0;
  for (const parallel::RankNode& node : graph.nodes) {
    if (node.op != parallel::RankOp::kLinear) continue;
    const device::WeightSpec& weight = graph.weights[node.weight].spec;
    const std::size_t rows_in = node.output == graph.logits ? 1 : tokens;
    multiplications += static_cast<double>(weight.rows) * static_cast<double>(weight.columns) * static_cast<double>(rows_in);
  }
  const double pairs = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
  const double attention = 2.0 * pairs * static_cast<double>(spec.num_heads * spec.head_dim * spec.num_layers);
  return 2.0 * (multiplications + attention / static_cast<double>(num_ranks));
}

Work work_of_all(const parallel::Graph& graph, const engine::ModelSpec& spec, std::size_t num_ranks, std::size_t prompt_tokens) {
  Work work;
  std::size_t largest = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const parallel::RankGraph plan = parallel::plan(graph, rank, num_ranks, device::cpu_activation_for);
    const std::size_t bytes = streamed_bytes(plan);
    work.streamed += bytes;
    work.prompt_flops += prompt_flops(plan, spec, num_ranks, prompt_tokens);
    largest = std::max(largest, bytes);
  }
  work.bound = static_cast<double>(streamed_bytes(parallel::plan(graph, 0, 1, device::cpu_activation_for))) /
               static_cast<double>(largest * num_ranks);
  return work;
}

constexpr std::size_t kLeastProbe = std::size_t{64} << 20, kLargestProbe = std::size_t{1} << 30;
constexpr double kProbeSeconds = 0.5;

struct Results {
  double decode = 0.0, prefill = 0.0, batch = 0.0;  // tokens a second
  double bandwidth = 0.0;                           // of the machine, bytes a second
  double token_bytes = 0.0;                         // what a decode step of one sequence reads
  double peak_flops = 0.0;                          // of GPUs; 0: unknown
  double prompt_flops = 0.0;                        // a second, in prefill
  std::size_t resident = 0;                         // bytes of this rank, at the end
  double share_of_roofline() const { return decode * token_bytes / bandwidth; }
  double share_of_peak() const { return prompt_flops / peak_flops; }
};

void print_json(const Job& job, const Results& results, const Work& work) {
  const RunConfig& config = job.config;
  nlohmann::ordered_json json = {{"model", config.model},
                                 {"ranks", job.num_ranks},
                                 {"threads_per_rank", job.num_threads},
                                 {"device", job.device},
                                 {"reduction", config.reduction},
                                 {"dtype", config.dtype},
                                 {"activation_dtype", config.activation_dtype},
                                 {"kv_dtype", job.session.kv_type()},
                                 {"in_len", config.input_len},
                                 {"out_len", config.output_len},
                                 {"batch", config.num_prompts},
                                 {"prefill_tok_s", results.prefill},
                                 {"decode_tok_s", results.decode},
                                 {"batch_tok_s", results.batch},
                                 {"bytes_per_token", results.token_bytes},
                                 {"memory_bandwidth", results.bandwidth},
                                 {"share_of_roofline", results.share_of_roofline()},
                                 {"plan_bound", work.bound},
                                 {"weight_bytes", job.session.weight_bytes()},
                                 {"kv_bytes", job.session.kv_bytes()},
                                 {"resident_bytes", results.resident}};
  if (results.peak_flops > 0.0) {
    json["prefill_flops"] = results.prompt_flops;
    json["peak_flops"] = results.peak_flops;
    json["share_of_peak"] = results.share_of_peak();
  }
  print(json.dump() + "\n");
}

void print_text(const Job& job, const Results& results, const Work& work) {
  const RunConfig& config = job.config;
  print(fmt::format("{}\n{} rank{}, {}\n\n", job.session.model().description, job.num_ranks, job.num_ranks == 1 ? "" : "s", job.device));
  print(fmt::format("prefill  {:10.1f} tok/s   {} tokens\n", results.prefill, config.input_len));
  print(fmt::format("decode   {:10.1f} tok/s   one sequence, {} tokens\n", results.decode, config.output_len));
  print(fmt::format("batch    {:10.1f} tok/s   {} sequences, {} + {} tokens, generated ones counted\n\n", results.batch, config.num_prompts,
                    config.input_len, config.output_len));
  const std::string readers = results.peak_flops > 0.0
                                  ? fmt::format("{} GPU{}", job.num_ranks, job.num_ranks == 1 ? "" : "s")
                                  : fmt::format("{} threads", job.num_threads * static_cast<std::size_t>(job.num_ranks));
  print(fmt::format("decode reads {:.1f} MB a token, {:.1f} GB/s; this machine gives {:.1f} GB/s to {}: {:.0f} % of the roofline\n",
                    results.token_bytes * 1e-6, results.decode * results.token_bytes * 1e-9, results.bandwidth * 1e-9, readers,
                    100.0 * results.share_of_roofline()));
  if (results.peak_flops > 0.0) {
    print(fmt::format("prefill does {:.1f} TFLOP/s; bf16 products of cuBLASLt do {:.1f}: {:.0f} % of the peak\n",
                      results.prompt_flops * 1e-12, results.peak_flops * 1e-12, 100.0 * results.share_of_peak()));
  }
  print(fmt::format("even share / largest share of the plan: {:.3f}\n", work.bound));
  print(fmt::format("rank 0 has {:.1f} MB in memory; its weights are {:.1f} MB, its KV cache up to {:.1f} MB\n",
                    1e-6 * static_cast<double>(results.resident), 1e-6 * static_cast<double>(job.session.weight_bytes()),
                    1e-6 * static_cast<double>(job.session.kv_bytes())));
}

}  // namespace

int run_bench(const Job& job) {
  const RunConfig& config = job.config;
  if (config.bench == BenchKind::kLatency) return run_latency_bench(job);
  if (config.bench == BenchKind::kThroughput) return run_throughput_bench(job);
  const std::size_t needed = static_cast<std::size_t>(config.input_len + config.output_len);
  if (needed > job.session.engine().limits().max_model_len) {
    throw engine::UsageError(fmt::format("--input-len and --output-len are {} tokens together; the model and its cache take {}", needed,
                                         job.session.engine().limits().max_model_len));
  }
  const auto num_ranks = static_cast<std::size_t>(job.num_ranks);
  const parallel::Graph graph = engine::graph_of(job.session.model(), weight_dtype(config));
  const Work work = work_of_all(graph, job.session.spec(), num_ranks, static_cast<std::size_t>(config.input_len));
  Bench bench(job);
  // As many bytes as a step reads: the larger the last cache of the machine, the more of a small model stays in it.
  const std::size_t probe_bytes = std::clamp(work.streamed, kLeastProbe, kLargestProbe);
  const auto measure_bandwidth = [&] {
    return job.measure_bandwidth ? job.measure_bandwidth()
                                 : device::measure_read_bandwidth(job.num_threads * num_ranks, probe_bytes, kProbeSeconds, job.processors);
  };
  Results results;
  results.token_bytes = static_cast<double>(work.streamed + job.session.kv_token_bytes() * bench.decode_context());
  // Measured right before and after what is held against it: the machine may be shared.
  const double bandwidth_before = measure_bandwidth();
  results.decode = bench.decode();
  results.bandwidth = std::max(bandwidth_before, measure_bandwidth());
  results.prefill = bench.prefill();
  results.prompt_flops = work.prompt_flops * results.prefill / static_cast<double>(config.input_len);
  if (job.measure_peak_flops) results.peak_flops = job.measure_peak_flops();
  results.batch = bench.batch();
  results.resident = resident_bytes();
  if (bench.stopped()) return 128 + job.control.stop_signal();
  if (config.json) {
    print_json(job, results, work);
  } else {
    print_text(job, results, work);
  }
  return 0;
}

}  // namespace lockstep::launcher
