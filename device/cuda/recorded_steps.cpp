#include "device/cuda/recorded_steps.h"

#include <algorithm>

#include "device/cuda/error.h"

namespace lockstep::device::cuda {
namespace {

/// Rows of the recording for `sequences` sequences: few sizes, and little waste.
std::size_t bucket_of(std::size_t sequences) {
  if (sequences <= 2) return sequences;
  if (sequences <= 4) return 4;
  const std::size_t step = sequences <= 64 ? 8 : 16;
  return (sequences + step - 1) / step * step;
}

constexpr std::size_t kLargestBucket = 256;

bool is_decode(const StepBatch& batch) {
  if (batch.sequences.size() != batch.num_tokens() || batch.logit_rows.size() != batch.num_tokens()) return false;
  return std::all_of(batch.sequences.begin(), batch.sequences.end(),
                     [](const StepBatch::Sequence& sequence) { return sequence.num_tokens == 1; });
}

}  // namespace

std::size_t RecordedSteps::rows_for(const StepBatch& batch, const StepLimits& limits) {
  const std::size_t largest = std::min({limits.max_tokens, limits.max_logit_rows, limits.max_sequences, kLargestBucket});
  if (batch.num_tokens() == 0 || batch.num_tokens() > largest || !is_decode(batch)) return 0;
  return std::min(bucket_of(batch.num_tokens()), largest);
}

void RecordedSteps::run(std::size_t num_rows, cudaStream_t stream, const std::function<void()>& walk) {
  const auto [found, is_first] = graphs_.try_emplace(num_rows);
  if (is_first) return walk();
  if (found->second.get() == nullptr) found->second = record(stream, walk);
  check(cudaGraphLaunch(found->second.get(), stream), "launching a recorded step");
}

void RecordedSteps::forget() {
  for (auto& [rows, graph] : graphs_) graph = Graph();  // the entries stay: one may be in the making
}

RecordedSteps::Graph RecordedSteps::record(cudaStream_t stream, const std::function<void()>& walk) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t graph = nullptr;
  try {
    walk();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t state = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(state, "instantiating a recorded step");
  return Graph(executable);
}

}  // namespace lockstep::device::cuda
