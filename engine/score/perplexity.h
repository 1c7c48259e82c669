#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/runtime/engine.h"

namespace lockstep::engine {

struct PerplexityOptions {
  std::size_t window = 0;                                             // tokens that are run together; 0: the engine's max_model_len
  std::size_t stride = 0;                                             // from window to window; 0: half the window
  const std::atomic<bool>* stop = nullptr;                            // once true the measurement is given up
  std::function<void(std::size_t done, std::size_t total)> progress;  // windows, after each step; may be empty
};

struct Perplexity {
  double sum_logprob = 0.0;  // natural logarithms
  std::size_t num_scored = 0;
  std::size_t num_tokens = 0;
  std::size_t num_windows = 0;
  std::size_t window = 0;  // as used
  std::size_t stride = 0;
  bool interrupted = false;  // by `stop`: the rest says nothing
  double mean_nll() const { return -sum_logprob / static_cast<double>(num_scored); }
  double perplexity() const;
};

/// How well a model predicts a text. The engine must have nothing else in flight. The same bits whatever the ranks, chunks and batches:
/// fp32 log-probabilities, added in fp64 in the order of the text.
/// @throws std::invalid_argument for a window or stride that can not be, or a text of fewer than two tokens; std::runtime_error where the
/// model's logits are not finite.
Perplexity measure_perplexity(Engine& engine, std::span<const TokenId> tokens, const PerplexityOptions& options = {});

}  // namespace lockstep::engine
