#include "engine/runtime/worker.h"

#include <stdexcept>
#include <string>

namespace lockstep::engine {

std::uint64_t serve(PlanReceiver& receiver, StepRunner& runner) {
  std::vector<std::byte> bytes;
  StepPlan plan;
  constexpr std::size_t kTokens = 512, kSequences = 64;  // the usual limits; more is taken when it comes
  plan.reserve(kTokens, kSequences);
  StepResult result;
  for (std::uint64_t num_steps = 0;; ++num_steps) {
    receiver.receive(bytes);
    deserialize(bytes, plan);
    if (plan.sequence != num_steps + 1) {
      throw std::runtime_error("worker: plan " + std::to_string(plan.sequence) + " arrived, but plan " + std::to_string(num_steps + 1) +
                               " is next");
    }
    if (plan.kind == StepKind::kStop) return num_steps;
    if (plan.kind == StepKind::kAbort) throw std::runtime_error("rank 0 aborted the job: " + plan.reason);
    runner.run(plan, result);
  }
}

}  // namespace lockstep::engine
