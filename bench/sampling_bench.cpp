// Sampling one token from a row of logits, on one thread: what rank 0 does for every sequence of a step while the other ranks wait.
#include <random>

#include <benchmark/benchmark.h>

#include "comm/self.h"
#include "device/cpu/cpu_device.h"
#include "engine/runtime/rank_selection.h"
#include "engine/sampling/sampler.h"

namespace lockstep::engine {
namespace {

/// A row like a language model's: a few logits stand out from the rest.
std::vector<float> row_of_logits(std::size_t vocab_size, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
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

/// All of it for the rows of one step, on one rank: what they want, the work on the device, the tokens. Divide by the time of a step.
void select(benchmark::State& state, const SamplingParams& params, std::uint32_t num_candidates = kFirstCandidates) {
  const auto num_rows = static_cast<std::size_t>(state.range(0));
  const auto vocab_size = static_cast<std::size_t>(state.range(1));
  const auto device = device::make_cpu_device({.num_threads = static_cast<std::size_t>(state.range(2)), .own_processors = true});
  const auto self = comm::make_self_communicator();
  device->prepare_steps({.max_tokens = num_rows, .max_logit_rows = num_rows});
  RankSelection selection({{0, vocab_size}}, num_rows, *device, *self);
  std::vector<float> logits;
  for (std::size_t i = 0; i < num_rows; ++i) {
    const std::vector<float> row = row_of_logits(vocab_size, static_cast<std::uint32_t>(i));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const device::Matrix matrix{logits.data(), vocab_size, num_rows, device::Activation::kFloat32};
  const std::vector<std::int32_t> history(500, 7);
  std::vector<device::SelectionRow> rows;
  std::vector<device::LogitChange> changes;
  std::vector<device::Top> tops(num_rows);
  LogitChanges collector;
  Sampler sampler;
  SamplingContext context;
  context.prompt = history;
  context.generated = history;
  std::size_t num_fetched = 0;
  for (auto _ : state) {
    rows.clear();
    changes.clear();
    ++context.position;
    for (std::size_t i = 0; i < num_rows; ++i) {
      const std::size_t first = changes.size();
      collector.collect(params, context, vocab_size, changes);
      rows.push_back(selection_row(params, std::span(changes).subspan(first), num_candidates));
      rows.back().row = static_cast<std::uint32_t>(i);
    }
    device->top_of_rows(matrix, num_rows);
    selection.select(matrix, rows, changes);
    device->read_tops(tops);
    SelectedRows& selected = *selection.gather(rows, changes, tops);
    for (std::size_t i = 0; i < num_rows; ++i) {
      Sample sample;
      context.choice = static_cast<std::uint32_t>(i);
      if (sampler.select(selected.row(i), params, context, sample) != Sampler::Selected::kYes) {
        ++num_fetched;
        sample = sampler.sample(std::span(logits).subspan(i * vocab_size, vocab_size), params, context);
      }
      benchmark::DoNotOptimize(sample);
    }
  }
  state.counters["fetched"] =
      static_cast<double>(num_fetched) / static_cast<double>(num_rows * static_cast<std::size_t>(state.iterations()));
}

BENCHMARK_CAPTURE(run, top_p_90_logprobs_5, params_with(0.8f, 0, 0.9f, 5, 1.0f))->Arg(49152);
BENCHMARK_CAPTURE(select, top_p_90_logprobs_5, params_with(0.8f, 0, 0.9f, 5, 1.0f))
    ->Args({32, 49152, 2})
    ->Args({1, 49152, 2})
    ->UseRealTime();
BENCHMARK_CAPTURE(select, top_p_90, params_with(0.8f, 0, 0.9f, -1, 1.0f))->Args({32, 49152, 2})->UseRealTime();
BENCHMARK_CAPTURE(select, top_p_90_of_256, params_with(0.8f, 0, 0.9f, -1, 1.0f), 256)->Args({32, 49152, 2})->UseRealTime();
BENCHMARK_CAPTURE(select, greedy_logprobs_5, params_with(0.0f, 0, 1.0f, 5, 1.0f))->Args({32, 49152, 2})->UseRealTime();
BENCHMARK_CAPTURE(select, top_k_50, params_with(0.8f, 50, 1.0f, -1, 1.0f))->Args({32, 49152, 2})->UseRealTime();
BENCHMARK_CAPTURE(select, penalised_top_p_90, params_with(0.8f, 0, 0.9f, -1, 1.1f))->Args({32, 49152, 2})->UseRealTime();

}  // namespace
}  // namespace lockstep::engine
