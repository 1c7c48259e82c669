#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/perplexity.h"
#include "launcher/subcommands.h"

namespace lockstep::launcher {
namespace {

engine::ScoreOptions score_options(const RunConfig& config) {
  engine::ScoreOptions options;
  set_job_options(config, options);
  options.add_special = !config.bare_text;
  options.max_in_flight = std::max<std::size_t>(4 * static_cast<std::size_t>(config.max_num_seqs), 64);
  return options;
}

int measure(const Job& job) {
  const RunConfig& config = job.config;
  const std::string text = read_perplexity_text(config);
  const std::vector<engine::TokenId> tokens = perplexity_tokens(config, job.session.tokenizer(), text);
  engine::PerplexityOptions options = perplexity_options(config, job.session.engine());
  options.stop = &job.control.stop_requested();
  options.progress = [&](std::size_t done, std::size_t total) {
    job.control.set_progress(
        {.done = done, .total = total, .prompt_tokens = job.session.engine().counters().prompt_tokens, .generated_tokens = 0});
  };
  const engine::Perplexity result = engine::measure_perplexity(job.session.engine(), tokens, options);
  if (result.interrupted) return 128 + job.control.stop_signal();
  if (config.json) {
    const nlohmann::ordered_json json = {
        {"perplexity", result.perplexity()},  {"mean_nll", result.mean_nll()}, {"sum_logprob", result.sum_logprob},
        {"scored_tokens", result.num_scored}, {"tokens", result.num_tokens},   {"bytes", text.size()},
        {"windows", result.num_windows},      {"window", result.window},       {"stride", result.stride}};
    print(json.dump() + "\n");
  } else {
    print(fmt::format("perplexity {:.6f} ({:.6f} nats a token; {})\n", result.perplexity(), result.mean_nll(), describe_windows(result)));
  }
  return 0;
}

}  // namespace

void check_files(const RunConfig& config) {
  if (config.subcommand == Subcommand::kBatch) engine::check_job_files(batch_options(config));
  if (config.subcommand != Subcommand::kScore) return;
  if (config.perplexity_file.empty()) {
    engine::check_job_files(score_options(config));
  } else {
    read_perplexity_text(config);
  }
}

int run_score_job(const Job& job) {
  if (!job.config.perplexity_file.empty()) return measure(job);
  const engine::ScoreHooks hooks{
      .progress =
          [&](std::uint64_t done, std::uint64_t prompt_tokens) {
            job.control.set_progress({.done = done, .total = 0, .prompt_tokens = prompt_tokens, .generated_tokens = 0});
          },
      .stop = &job.control.stop_requested()};
  engine::ScoreOptions options = score_options(job.config);
  set_model_settings(job, options);
  const engine::ScoreResult result = engine::run_score(options, job.session.engine(), job.session.tokenizer_or_null(), hooks);
  if (result.interrupted) {
    job.log.info("stopped: {} lines are done; --resume continues", result.answered + result.failed);
    return 128 + job.control.stop_signal();
  }
  job.log.info("{} answers, {} lines with an error{}", result.answered, result.failed,
               result.resumed > 0 ? fmt::format(" ({} from an earlier run)", result.resumed) : "");
  return result.failed > 0 && !job.config.allow_errors ? 3 : 0;
}

}  // namespace lockstep::launcher
