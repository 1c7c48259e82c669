#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/runtime/coordinator_state.h"

namespace lockstep::engine {

namespace {

CoordinatorOptions checked(CoordinatorOptions options) {
  if (options.max_model_len < 2)
    throw std::invalid_argument("coordinator: max_model_len " + std::to_string(options.max_model_len) + " leaves no room for an answer");
  if (options.vocab_size == 0) throw std::invalid_argument("coordinator: vocab_size must be at least 1");
  return options;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, StepRunner& runner, PlanSender* sender)
    : options_(checked(std::move(options))), runner_(runner), sender_(sender), scheduler_(options_.scheduler) {
  limits_.max_model_len =
      std::min(options_.max_model_len, options_.scheduler.num_blocks / options_.scheduler.tables.all() * options_.scheduler.block_size);
  limits_.vocab_size = options_.vocab_size;
  plan_.reserve(options_.scheduler.max_num_batched_tokens, options_.scheduler.max_num_seqs);
}

Coordinator::~Coordinator() = default;

Engine::Limits Coordinator::limits() const { return limits_; }

Engine::Counters Coordinator::counters() const {
  Counters counters = counters_;
  counters.preemptions = scheduler_.num_preemptions();
  return counters;
}

void Coordinator::check(const Request& request) const {
  const SamplingParams& params = request.sampling;
  const auto refuse = [](const std::string& what) { throw std::invalid_argument(what); };
  const std::string length = std::to_string(request.prompt.size()), room = std::to_string(limits_.max_model_len);
  if (request.prompt.empty()) refuse("the prompt is empty");
  if (request.first_scored != 0 && params.max_tokens == 0) {
    if (request.prompt.size() > limits_.max_model_len + 1)  // the last one is only scored
      refuse("a prompt of " + length + " tokens can not be scored within " + room);
  } else if (request.prompt.size() >= limits_.max_model_len) {
    refuse("a prompt of " + length + " tokens leaves no room for an answer within " + room);
  }
  for (const TokenId id : request.prompt) {
    if (id < 0 || static_cast<std::size_t>(id) >= limits_.vocab_size)
      refuse("token " + std::to_string(id) + " of the prompt is not in the model's vocabulary of " + std::to_string(limits_.vocab_size));
  }
  if (params.n == 0) refuse("n is 0");
  if (!(params.temperature >= 0.0f) || std::isinf(params.temperature)) refuse("temperature " + std::to_string(params.temperature));
  if (options_.tokenizer == nullptr && !params.stop.empty()) refuse("stop strings need a tokenizer");
  if (!params.beams) return;
  check_beams(params);
  if (request.first_scored != 0) refuse("a beam search does not score its prompt");
}

void Coordinator::submit(Request request, OnCompletion done) {
  check(request);
  auto group = std::make_shared<Group>();
  group->request = std::move(request);
  group->done = std::move(done);
  const Request& kept = group->request;
  group->completion.id = kept.id;
  group->completion.prompt_tokens = kept.prompt.size();
  group->completion.choices.resize(kept.sampling.n);
  std::size_t max_tokens = kept.sampling.max_tokens;
  if (max_tokens > 0) max_tokens = std::min(max_tokens, limits_.max_model_len - kept.prompt.size());
  const bool is_scored = kept.first_scored != 0 && kept.first_scored < kept.prompt.size();
  if (is_scored) group->completion.prompt_logprobs.resize(kept.prompt.size() - kept.first_scored);
  ++num_in_flight_;
  for (std::uint32_t index = 0; index < kept.sampling.n; ++index) group->completion.choices[index].index = index;
  if (kept.sampling.beams && max_tokens > 0) return submit_beams(group, max_tokens);
  for (std::uint32_t index = 0; index < kept.sampling.n; ++index) {
    Choice& choice = group->completion.choices[index];
    ScoredPositions scored;  // by the first choice, for all
    if (is_scored && index == 0) scored = {kept.first_scored - 1, kept.prompt.size() - 1};
    if (max_tokens == 0 && scored.end == 0) continue;  // complete as it is, at the next step
    // So that no step allocates; a very long answer may, now and then.
    constexpr std::size_t kMostReserved = 4096, kBytesOfToken = 4;
    choice.tokens.reserve(std::min(max_tokens, kMostReserved));
    if (options_.tokenizer != nullptr) choice.text.reserve(kBytesOfToken * std::min(max_tokens, kMostReserved));
    ++group->num_open;
    auto state = std::make_unique<ChoiceState>(ChoiceState{group, &choice, max_tokens, StopStrings(kept.sampling.stop), std::nullopt});
    if (kept.sampling.min_tokens > 0) state->end_ids = end_ids_of(kept.sampling);
    if (options_.tokenizer != nullptr) state->detokenizer.emplace(*options_.tokenizer, true, kept.prompt);
    std::vector<TokenId> tokens = kept.prompt;
    if (max_tokens == 0) tokens.pop_back();  // nothing comes after it
    const std::size_t most_tokens = tokens.size() + max_tokens;
    add_sequence(std::move(tokens), most_tokens, scored, std::move(state));
  }
  if (group->num_open == 0) complete_.push_back(std::move(group));
}

SequenceId Coordinator::add_sequence(std::vector<TokenId> tokens, std::size_t most_tokens, ScoredPositions scored,
                                     std::unique_ptr<ChoiceState> state) {
  const std::uint64_t prefix_group = options_.angles_depend_on_length ? state->group->request.prompt.size() : 0;
  const SequenceId sequence = scheduler_.add(std::move(tokens), most_tokens, prefix_group, scored);
  choices_.emplace(sequence, std::move(state));
  return sequence;
}

bool Coordinator::step() {
  if (is_over_) throw std::logic_error("coordinator: it was stopped, or a step failed");
  if (num_in_flight_ == 0) return false;
  scheduler_.schedule(chunks_);
  if (!chunks_.empty()) {
    build_plan();
    run_everywhere(plan_, result_);
    is_over_ = true;  // should the runner's result make no sense
    scheduler_.advance();
    take_result();
    is_over_ = false;
  }
  deliver();
  return true;
}

void Coordinator::build_plan() {
  plan_.clear();
  plan_.batch.num_tables = static_cast<std::uint32_t>(options_.scheduler.tables.all());
  logit_rows_.clear();
  for (const ScheduledChunk& chunk : chunks_) add_chunk(chunk);
  counters_.selected_rows += plan_.selections.size();
}

void Coordinator::add_chunk(const ScheduledChunk& chunk) {
  device::StepBatch& batch = plan_.batch;
  const std::vector<TokenId>& tokens = scheduler_.tokens(chunk.sequence);
  const std::size_t end = std::size_t{chunk.first_position} + chunk.num_tokens;
  batch.sequences.push_back({static_cast<std::uint32_t>(batch.num_tokens()), chunk.num_tokens, chunk.first_position,
                             static_cast<std::uint32_t>(batch.block_tables.size()),
                             static_cast<std::uint32_t>(choices_.at(chunk.sequence)->group->request.prompt.size())});
  scheduler_.append_block_tables(chunk.sequence, end, batch.block_tables);
  for (std::size_t position = chunk.first_position; position < end; ++position) {
    batch.token_ids.push_back(tokens[position]);
    batch.positions.push_back(static_cast<std::int32_t>(position));
  }
  if (!chunk.is_decode) counters_.prompt_tokens += chunk.num_tokens;
  const ScoredPositions scored = scheduler_.scored(chunk.sequence);
  const auto row_of = [&](std::size_t position) { return static_cast<std::uint32_t>(batch.num_tokens() - (end - position)); };
  for (std::size_t position = std::max<std::size_t>(chunk.first_position, scored.begin); position < std::min(end, scored.end); ++position) {
    add_row(chunk.sequence, row_of(position));
    logit_rows_.back().scored = position + 1;
    add_scored_wish(*logit_rows_.back().state, position + 1);
  }
  if (!chunk.reaches_end || (scored.begin < end && end <= scored.end)) return;
  add_row(chunk.sequence, row_of(end - 1));
  add_wish(*logit_rows_.back().state, tokens.size());
}

void Coordinator::add_row(SequenceId sequence, std::uint32_t row) {
  plan_.batch.logit_rows.push_back(row);
  logit_rows_.push_back({.sequence = sequence, .state = choices_.at(sequence).get(), .selection = plan_.selections.size()});
}

/// What rank 0 wants of the row that was just added: the log-probability of a prompt token.
void Coordinator::add_scored_wish(const ChoiceState& state, std::size_t position) {
  const Request& request = state.group->request;
  device::SelectionRow row = scored_row(static_cast<std::uint32_t>(std::max(request.sampling.logprobs, 0)));
  row.row = static_cast<std::uint32_t>(plan_.wanted.size());
  plan_.selections.push_back(row);
  plan_.changes.push_back(lifted(static_cast<std::uint32_t>(request.prompt[position])));
  plan_.wanted.push_back(RowWants::kSelection);
}

/// What rank 0 wants of the row that was just added: the next token.
void Coordinator::add_wish(const ChoiceState& state, std::size_t num_tokens) {
  const SamplingParams& params = state.params();
  const std::size_t first_change = plan_.changes.size();
  if (needs_only_top(params)) return plan_.wanted.push_back(RowWants::kTop);
  if (state.needs_rows || !can_select(params)) return plan_.wanted.push_back(RowWants::kLogits);
  changes_.collect(params, context_of(state, num_tokens), limits_.vocab_size, plan_.changes);
  const auto changes = std::span(plan_.changes).subspan(first_change);
  if (params.greedy() && changes.empty() && params.logprobs < 0) return plan_.wanted.push_back(RowWants::kTop);
  device::SelectionRow row = selection_row(params, changes, state.num_candidates);
  row.row = static_cast<std::uint32_t>(plan_.wanted.size());
  plan_.selections.push_back(row);
  plan_.wanted.push_back(RowWants::kSelection);
}

SamplingContext Coordinator::context_of(const ChoiceState& state, std::size_t num_tokens) const {
  SamplingContext context;
  context.prompt = state.group->request.prompt;
  context.generated = state.choice->tokens;
  context.choice = state.choice->index;
  context.position = num_tokens;
  context.end_ids = state.end_ids;
  return context;
}

void Coordinator::run_everywhere(StepPlan& plan, StepResult& result) {
  is_over_ = true;  // until the step has succeeded
  plan.sequence = ++num_plans_;
  if (plan.kind == StepKind::kRun) ++counters_.steps;
  send(plan);
  runner_.run(plan, result);
  is_over_ = false;
}

void Coordinator::run_when_idle(StepPlan& plan, StepResult& result) {
  if (is_over_) throw std::logic_error("coordinator: it was stopped, or a step failed");
  if (num_in_flight_ != 0)
    throw std::logic_error("coordinator: it is not idle, " + std::to_string(num_in_flight_) + " requests are in flight");
  scheduler_.forget_prefixes();  // the plan may overwrite any block
  run_everywhere(plan, result);
}

void Coordinator::send(const StepPlan& plan) {
  if (sender_ == nullptr) return;
  serialize(plan, bytes_);
  sender_->send(bytes_);
}

void Coordinator::deliver() {
  // A callback may submit, and even cancel: by now everything is in order, and the list is out of its reach.
  std::vector<std::shared_ptr<Group>> complete = std::exchange(complete_, {});
  num_in_flight_ -= complete.size();
  counters_.finished_requests += complete.size();
  for (const auto& group : complete) {
    if (group->done) group->done(std::move(group->completion));
  }
}

void Coordinator::cancel_all() {
  scheduler_.remove_all();
  choices_.clear();
  beam_groups_.clear();
  complete_.clear();
  num_in_flight_ = 0;
}

void Coordinator::end(StepKind kind, std::string_view reason) {
  is_over_ = true;
  plan_.clear();
  plan_.kind = kind;
  plan_.sequence = num_plans_ + 1;
  plan_.reason = reason;
  send(plan_);
}

void Coordinator::stop() { end(StepKind::kStop, ""); }
void Coordinator::abort(std::string_view reason) { end(StepKind::kAbort, reason); }

}  // namespace lockstep::engine
