#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/runtime/request.h"

namespace lockstep::engine {

/// What the caller on rank 0 drives: submit requests, step until idle. The other ranks serve in Worker. Coordinator implements it; tests
/// give a fake.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Whether submit() would take the request: it is asked before, where one bad request must not cost the others.
  /// @throws std::invalid_argument that says what can not be computed.
  virtual void check(const Request& request) const = 0;
  /// Takes a request in. `done` is called from step(). @throws std::invalid_argument as check() does; then nothing has changed.
  virtual void submit(Request request, OnCompletion done) = 0;
  /// Runs one step over all ranks. False if there was nothing to do.
  virtual bool step() = 0;
  /// Requests that were submitted and are not complete.
  virtual std::size_t num_in_flight() const = 0;
  /// Ends every request in flight without calling its `done`.
  virtual void cancel_all() = 0;

  struct Limits {
    std::size_t max_model_len = 0;  // tokens of prompt and answer together
    std::size_t vocab_size = 0;
  };
  virtual Limits limits() const = 0;

  struct Counters {
    std::uint64_t steps = 0;
    std::uint64_t prompt_tokens = 0;  // computed, recomputation after a preemption included
    std::uint64_t generated_tokens = 0;
    std::uint64_t preemptions = 0;
    std::uint64_t finished_requests = 0;
    std::uint64_t selected_rows = 0;  // tokens that were sampled where the logits are
    std::uint64_t fetched_rows = 0;   // of them, those for which the row had to be fetched after all
  };
  virtual Counters counters() const = 0;
};

}  // namespace lockstep::engine
