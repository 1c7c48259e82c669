#include "engine/score/perplexity.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/portable_math.h"
#include "engine/score/windows.h"

namespace lockstep::engine {
double Perplexity::perplexity() const { return device::portable::exp(mean_nll()); }

Perplexity measure_perplexity(Engine& engine, std::span<const TokenId> tokens, const PerplexityOptions& options) {
  constexpr std::size_t kMaxInFlight = 128;
  Perplexity result;
  result.window = options.window != 0 ? options.window : engine.limits().max_model_len;
  result.stride = options.stride != 0 ? options.stride : std::max<std::size_t>(result.window / 2, 1);
  if (result.window > engine.limits().max_model_len) {
    throw std::invalid_argument("a window of " + std::to_string(result.window) + " tokens is more than the context of " +
                                std::to_string(engine.limits().max_model_len));
  }
  if (tokens.size() < 2) throw std::invalid_argument("a text of " + std::to_string(tokens.size()) + " tokens has no perplexity");
  const std::vector<ScoreWindow> windows = score_windows(tokens.size(), result.window, result.stride);
  std::vector<double> sums(windows.size());
  std::string error;
  std::size_t num_done = 0;
  for (std::size_t next = 0; num_done < windows.size();) {
    for (; next < windows.size() && engine.num_in_flight() < kMaxInFlight; ++next) {
      Request request = window_request(tokens, windows[next]);
      request.id = next;
      engine.submit(std::move(request), [&](Completion&& completion) {
        for (const TokenLogprob& token : completion.prompt_logprobs) sums[completion.id] += static_cast<double>(token.logprob);
        if (completion.choices[0].finish_reason == FinishReason::kError) error = completion.choices[0].error;
        ++num_done;
      });
    }
    const bool stopped = options.stop != nullptr && options.stop->load();
    if (!stopped && !engine.step() && num_done < windows.size()) throw std::runtime_error("the engine has nothing to do, but owes windows");
    if (stopped || !error.empty()) {
      engine.cancel_all();
      if (!error.empty()) throw std::runtime_error(error);
      result.interrupted = true;
      return result;
    }
    if (options.progress) options.progress(num_done, windows.size());
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    result.sum_logprob += sums[i];
    result.num_scored += windows[i].end - windows[i].first_scored;
  }
  result.num_tokens = tokens.size();
  result.num_windows = windows.size();
  return result;
}

}  // namespace lockstep::engine
