// `lockstep bench latency` and `lockstep bench throughput`: a model end to end, as its users meet it.
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/bench_requests.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;

RequestLengths lengths_of(const RunConfig& config) {
  return {static_cast<std::size_t>(config.input_len), static_cast<std::size_t>(config.output_len)};
}

void check_lengths(const Job& job, const std::vector<RequestLengths>& lengths) {
  const std::size_t most = job.session.engine().limits().max_model_len;
  for (const RequestLengths& each : lengths) {
    if (each.prompt + each.output > most)
      throw engine::UsageError(fmt::format("a request of {} + {} tokens (--input-len, --output-len); the model and its cache take {}",
                                           each.prompt, each.output, most));
  }
}

nlohmann::ordered_json setup_json(const Job& job) {
  return {{"model", job.config.model}, {"ranks", job.num_ranks},    {"threads_per_rank", job.num_threads},
          {"device", job.device},      {"dtype", job.config.dtype}, {"kv_dtype", job.session.kv_type()}};
}

std::string setup_text(const Job& job) {
  return fmt::format("{}\n{} rank{}, {}\n\n", job.session.model().description, job.num_ranks, job.num_ranks == 1 ? "" : "s", job.device);
}

nlohmann::ordered_json spread_json(const std::vector<double>& seconds) {
  return {{"median", quantile(seconds, 0.5)},
          {"p90", quantile(seconds, 0.9)},
          {"least", quantile(seconds, 0.0)},
          {"most", quantile(seconds, 1.0)}};
}

std::string spread_text(const std::string& name, const std::vector<double>& seconds) {
  return fmt::format("{:<22}{:10.2f} ms   p90 {:.2f}, least {:.2f}, most {:.2f}\n", name, 1e3 * quantile(seconds, 0.5),
                     1e3 * quantile(seconds, 0.9), 1e3 * quantile(seconds, 0.0), 1e3 * quantile(seconds, 1.0));
}

/// Seconds, one entry for each run.
struct Latencies {
  std::vector<double> first_token;  // until every sequence has one
  std::vector<double> each_token;   // a step behind it
  std::vector<double> all;
};

void print_latencies(const Job& job, const Latencies& latencies) {
  const RunConfig& config = job.config;
  if (config.json) {
    nlohmann::ordered_json json = setup_json(job);
    json["in_len"] = config.input_len;
    json["out_len"] = config.output_len;
    json["batch"] = config.batch_size;
    json["runs"] = latencies.all.size();
    json["first_token_s"] = spread_json(latencies.first_token);
    json["each_token_s"] = spread_json(latencies.each_token);
    json["all_s"] = spread_json(latencies.all);
    return print(json.dump() + "\n");
  }
  print(setup_text(job));
  print(fmt::format("{} sequence{} of {} + {} tokens together, median of {} runs\n", config.batch_size, config.batch_size == 1 ? "" : "s",
                    config.input_len, config.output_len, latencies.all.size()));
  print(spread_text("to the first token", latencies.first_token));
  print(spread_text("each further token", latencies.each_token));
  print(spread_text("the whole answer", latencies.all));
}

}  // namespace

int run_latency_bench(const Job& job) {
  const RunConfig& config = job.config;
  const auto batch = static_cast<std::size_t>(config.batch_size);
  const RequestLengths lengths = lengths_of(config);
  check_lengths(job, {lengths});
  if (config.batch_size > config.max_num_seqs)
    throw engine::UsageError(fmt::format("--batch-size {} is more than --max-num-seqs {}", config.batch_size, config.max_num_seqs));
  BenchRequests requests(job);
  Latencies latencies;
  for (std::int64_t i = 0; i < config.warmup + config.iterations && !requests.stopped(); ++i) {
    for (std::size_t sequence = 0; sequence < batch; ++sequence) requests.submit(lengths);
    const auto start = Clock::now();
    const std::uint64_t before = requests.run_to_first_tokens(batch);
    const double first = seconds_since(start);
    const std::uint64_t tokens = requests.run() - before;
    const double all = seconds_since(start);
    if (i < config.warmup || requests.stopped()) continue;
    latencies.first_token.push_back(first);
    latencies.all.push_back(all);
    if (tokens > 0) latencies.each_token.push_back((all - first) * static_cast<double>(batch) / static_cast<double>(tokens));
  }
  if (requests.stopped()) return 128 + job.control.stop_signal();
  print_latencies(job, latencies);
  return 0;
}

int run_throughput_bench(const Job& job) {
  const RunConfig& config = job.config;
  const auto lengths = mixed_lengths(static_cast<std::size_t>(config.num_prompts), lengths_of(config), config.range_ratio);
  check_lengths(job, lengths);
  std::size_t prompt_tokens = 0, output_tokens = 0;
  for (const RequestLengths& each : lengths) {
    prompt_tokens += each.prompt;
    output_tokens += each.output;
  }
  BenchRequests requests(job);
  std::vector<double> seconds;
  std::uint64_t steps = 0, preemptions = 0;
  for (std::int64_t i = 0; i < config.warmup + config.iterations && !requests.stopped(); ++i) {
    const engine::Engine::Counters before = requests.engine().counters();
    const auto start = Clock::now();
    for (const RequestLengths& each : lengths) requests.submit(each);
    requests.run();
    const double taken = seconds_since(start);
    steps = requests.engine().counters().steps - before.steps;
    preemptions = requests.engine().counters().preemptions - before.preemptions;
    if (i >= config.warmup) seconds.push_back(taken);
  }
  if (requests.stopped()) return 128 + job.control.stop_signal();
  const double taken = quantile(seconds, 0.5), all_tokens = static_cast<double>(prompt_tokens + output_tokens);
  if (config.json) {
    nlohmann::ordered_json json = setup_json(job);
    json.update({{"requests", lengths.size()},
                 {"prompt_tokens", prompt_tokens},
                 {"output_tokens", output_tokens},
                 {"runs", seconds.size()},
                 {"elapsed_s", spread_json(seconds)},
                 {"requests_per_s", static_cast<double>(lengths.size()) / taken},
                 {"total_tok_s", all_tokens / taken},
                 {"output_tok_s", static_cast<double>(output_tokens) / taken},
                 {"steps", steps},
                 {"preemptions", preemptions}});
    print(json.dump() + "\n");
    return 0;
  }
  print(setup_text(job));
  print(fmt::format("{} requests, {} prompt tokens, {} generated tokens, median of {} run{}\n", lengths.size(), prompt_tokens,
                    output_tokens, seconds.size(), seconds.size() == 1 ? "" : "s"));
  print(fmt::format("{:10.2f} s        least {:.2f}, most {:.2f}; {} steps, {} preemptions\n", taken, quantile(seconds, 0.0),
                    quantile(seconds, 1.0), steps, preemptions));
  print(fmt::format("{:10.1f} tok/s    prompts and answers\n{:10.1f} tok/s    answers\n{:10.2f} requests/s\n", all_tokens / taken,
                    static_cast<double>(output_tokens) / taken, static_cast<double>(lengths.size()) / taken));
  return 0;
}

}  // namespace lockstep::launcher
