#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/runtime/plan_channel.h"
#include "engine/runtime/scheduler.h"
#include "engine/runtime/step_plan.h"
#include "engine/runtime/step_runner.h"
#include "engine/runtime/stop_strings.h"
#include "engine/sampling/sampler.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

struct CoordinatorOptions {
  SchedulerOptions scheduler;
  std::size_t max_model_len = 0;  // of the model or as asked for; what the KV cache holds for one sequence is a limit as well
  std::size_t vocab_size = 0;
  std::vector<TokenId> eos_ids;                // tokens that end a generation, unless ignore_eos
  bool angles_depend_on_length = false;        // rotary angles of a prompt depend on its length: only prompts as long share their blocks
  const text::Tokenizer* tokenizer = nullptr;  // absent: answers have no text, and stop strings are refused
};

/// The autoregressive loop on rank 0, the only one to decide anything: scheduler -> step plan -> every rank -> sampler -> stop conditions
/// -> callbacks.
///
/// An answer depends on the prompt, the sampling parameters and the model alone: not on the options of the scheduler, the other requests or
/// the order of calls. A generation ends with kStop at an EOS id, one of stop_token_ids (both belong to `tokens`, not to `text`) or a stop
/// string (`text` ends before it); with kLength at max_tokens or when the context is full; with kError when the model's logits are not
/// finite. One choice's error leaves the others alone.
///
/// If the runner or the sender throws, the exception leaves step() and the object is of no further use (every step() throws).
class Coordinator : public Engine {
 public:
  /// `runner` and `sender` must outlive the object. `sender` is null where there is one rank.
  /// @throws std::invalid_argument that names the option.
  Coordinator(CoordinatorOptions options, StepRunner& runner, PlanSender* sender);
  ~Coordinator() override;

  /// @throws std::invalid_argument for an empty or too long prompt, a token outside the vocabulary, no choice, stop strings without text,
  /// more beams than there are candidates.
  void check(const Request& request) const override;
  void submit(Request request, OnCompletion done) override;
  bool step() override;
  std::size_t num_in_flight() const override { return num_in_flight_; }
  void cancel_all() override;
  Limits limits() const override;
  Counters counters() const override;

  /// Runs a plan of the caller's on every rank, where one wants more of a forward pass than answers (all logits of a prompt). Its sequence
  /// number is set here, and any block of the cache is free to use.
  /// @throws std::logic_error if a request is in flight.
  void run_when_idle(StepPlan& plan, StepResult& result);

  /// Tells the other ranks that there is no further step. Call it once, when all is done; nothing may be stepped after it.
  void stop();
  /// As stop(), but they end with this error.
  void abort(std::string_view reason);

 private:
  struct Group;        // a request in flight
  struct ChoiceState;  // one of its choices

  void build_plan();
  void add_chunk(const ScheduledChunk& chunk);
  void add_row(SequenceId sequence, std::uint32_t row);
  void add_wish(const ChoiceState& state, std::size_t num_tokens);
  void add_scored_wish(const ChoiceState& state, std::size_t position);
  void run_everywhere(StepPlan& plan, StepResult& result);
  void send(const StepPlan& plan);
  void end(StepKind kind, std::string_view reason);
  void take_result();
  void check_result() const;
  void sample_rows();
  void sample_fetched_rows();
  bool sample_row(std::size_t row, const ChoiceState& state, const SamplingContext& context, Sample& sample);
  std::span<const float> checked_row(std::span<const float> logits) const;
  Sample sample_logits(std::span<const float> logits, const ChoiceState& state, const SamplingContext& context);
  SamplingContext context_of(const ChoiceState& state, std::size_t num_tokens) const;
  void take_score(std::size_t row);
  SequenceId add_sequence(std::vector<TokenId> tokens, std::size_t most_tokens, ScoredPositions scored, std::unique_ptr<ChoiceState> state);
  std::vector<TokenId> end_ids_of(const SamplingParams& params) const;
  void check_beams(const SamplingParams& params) const;
  void submit_beams(const std::shared_ptr<Group>& group, std::size_t max_tokens);
  void start_beams(const std::shared_ptr<Group>& group);
  void drop_beam(SequenceId& sequence);
  void take_beam(std::shared_ptr<Group> group, std::size_t beam, Sample&& sample);
  void advance_beams();
  void continue_beams(const std::shared_ptr<Group>& group);
  void finish_beams(const std::shared_ptr<Group>& group);
  void end_beams(const std::shared_ptr<Group>& group);
  void take_token(SequenceId sequence, ChoiceState& state, Sample&& sample);
  void finish(SequenceId sequence, ChoiceState& state, FinishReason reason);
  void deliver();

  CoordinatorOptions options_;
  StepRunner& runner_;
  PlanSender* sender_;
  Scheduler scheduler_;
  Sampler sampler_;
  Limits limits_;
  Counters counters_;
  std::size_t num_in_flight_ = 0;
  bool is_over_ = false;

  std::unordered_map<SequenceId, std::unique_ptr<ChoiceState>> choices_;
  std::vector<std::shared_ptr<Group>> complete_;     // to be delivered at the end of this step
  std::vector<ScheduledChunk> chunks_;               // of this step
  std::vector<std::shared_ptr<Group>> beam_groups_;  // beam searches that got a row in this step
  StepPlan plan_, fetch_plan_;
  StepResult result_, fetched_;
  LogitChanges changes_;
  struct LogitRow {
    SequenceId sequence = 0;
    ChoiceState* state = nullptr;
    std::size_t selection = 0;  // index in plan_.selections, where there is one
    std::size_t scored = 0;     // the prompt token that the row scores; 0: a token is sampled from it
    bool wants_more = false;    // candidates
  };
  std::vector<Sample> samples_;       // [logit rows of this step]
  std::vector<LogitRow> logit_rows_;  // likewise
  std::uint64_t num_plans_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace lockstep::engine
