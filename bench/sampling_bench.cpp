// Sampling one token from a row of logits, on one thread: what rank 0 does for every sequence of a step while the other ranks wait.
#include <random>

#include <benchmark/benchmark.h>

#include "engine/sampling/sampler.h"

namespace lockstep::engine {
namespace {

/// A row like a language model's: a few logits stand out from the rest.
std::vector<float> row_of_logits(std::size_t vocab_size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = normal(random);
  for (std::size_t i = 0; i < 10; ++i) logits[random() % vocab_size] += 12.0f;
  return logits;
}

void run(benchmark::State& state, const SamplingParams& params) {
  const std::vector<float> logits = row_of_logits(static_cast<std::size_t>(state.range(0)));
  const std::vector<std::int32_t> history(500, 7);
  Sampler sampler;
  SamplingContext context;
  context.prompt = history;
  context.generated = history;
  for (auto _ : state) {
    ++context.position;
    benchmark::DoNotOptimize(sampler.sample(logits, params, context));
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0) * static_cast<std::int64_t>(sizeof(float)));
}

SamplingParams params_with(float temperature, std::int32_t top_k, float top_p, std::int32_t logprobs, float repetition_penalty) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.logprobs = logprobs;
  params.repetition_penalty = repetition_penalty;
  return params;
}

BENCHMARK_CAPTURE(run, temperature, params_with(1.0f, 0, 1.0f, -1, 1.0f))->Arg(49152)->Arg(151936);
BENCHMARK_CAPTURE(run, hot, params_with(3.0f, 0, 1.0f, -1, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, top_k_50, params_with(1.0f, 50, 1.0f, -1, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, top_k_1000, params_with(1.0f, 1000, 1.0f, -1, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, top_p_95, params_with(0.7f, 0, 0.95f, -1, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, top_p_95_hot, params_with(2.0f, 0, 0.95f, -1, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, greedy_logprobs_5, params_with(0.0f, 0, 1.0f, 5, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(run, penalised_top_k_50, params_with(1.0f, 50, 1.0f, -1, 1.1f))->Arg(49152);

}  // namespace
}  // namespace lockstep::engine
