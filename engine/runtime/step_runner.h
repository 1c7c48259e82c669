#pragma once

#include <span>
#include <vector>

#include "engine/runtime/step_plan.h"
#include "engine/sampling/selected_row.h"

namespace lockstep::engine {

/// What a step gave. Filled on rank 0, empty elsewhere.
struct StepResult {
  std::vector<device::Top> tops;               // [logit rows of the plan]: over the whole vocabulary, ids too
  std::vector<std::span<const float>> logits;  // [logit rows of the plan]: [vocab_size] fp32 where the plan wants kLogits, else empty;
                                               // for kFetch [rows to fetch]. Memory of the runner, valid until its next run
  SelectedRows* selections = nullptr;          // [selections of the plan]; null: there is none. Memory of the runner as well; needs the
                                               // plan and `tops` as they are
};

/// Executes plans on one rank, the collectives of the group included. Every rank runs the same plans in the same order.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// @pre plan.kind is kRun or kFetch. Overwrites `result`. Throws (CommError included) if the step can not be completed: the engine is of
  /// no use then.
  virtual void run(const StepPlan& plan, StepResult& result) = 0;
};

}  // namespace lockstep::engine
