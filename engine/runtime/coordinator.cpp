#include "engine/runtime/coordinator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::engine {

struct Coordinator::Group {
  Request request;
  OnCompletion done;
  Completion completion;
  std::size_t num_open = 0;  // choices that are not finished
};

struct Coordinator::ChoiceState {
  std::shared_ptr<Group> group;
  Choice* choice = nullptr;    // in group->completion
  std::size_t max_tokens = 0;  // the request's, or what the context has room for
  StopStrings stop_strings;
  std::optional<text::IncrementalDetokenizer> detokenizer;
  std::vector<TokenId> end_ids{};                   // masked before min_tokens
  std::uint32_t num_candidates = kFirstCandidates;  // as many as were enough lately
  bool needs_rows = false;                          // not even the most were

  const SamplingParams& params() const { return group->request.sampling; }
};

namespace {

bool contains(const std::vector<TokenId>& ids, TokenId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

CoordinatorOptions checked(CoordinatorOptions options) {
  if (options.max_model_len < 2)
    throw std::invalid_argument("coordinator: max_model_len " + std::to_string(options.max_model_len) + " leaves no room for an answer");
  if (options.vocab_size == 0) throw std::invalid_argument("coordinator: vocab_size must be at least 1");
  return options;
}

void check_request(const Request& request, const Engine::Limits& limits, bool has_text) {
  const std::string name = "request " + std::to_string(request.id) + ": ";
  if (request.prompt.empty()) throw std::invalid_argument(name + "the prompt is empty");
  if (request.prompt.size() >= limits.max_model_len) {
    throw std::invalid_argument(name + "a prompt of " + std::to_string(request.prompt.size()) +
                                " tokens leaves no room for an answer within " + std::to_string(limits.max_model_len));
  }
  for (const TokenId id : request.prompt) {
    if (id < 0 || static_cast<std::size_t>(id) >= limits.vocab_size) {
      throw std::invalid_argument(name + "token " + std::to_string(id) + " is not in the vocabulary of " +
                                  std::to_string(limits.vocab_size));
    }
  }
  if (request.sampling.n == 0) throw std::invalid_argument(name + "n is 0");
  if (!(request.sampling.temperature >= 0.0f) || std::isinf(request.sampling.temperature)) {
    throw std::invalid_argument(name + "temperature " + std::to_string(request.sampling.temperature));
  }
  if (!has_text && !request.sampling.stop.empty()) throw std::invalid_argument(name + "stop strings need a tokenizer");
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, StepRunner& runner, PlanSender* sender)
    : options_(checked(std::move(options))), runner_(runner), sender_(sender), scheduler_(options_.scheduler) {
  limits_.max_model_len = std::min(options_.max_model_len, options_.scheduler.num_blocks * options_.scheduler.block_size);
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

void Coordinator::submit(Request request, OnCompletion done) {
  check_request(request, limits_, options_.tokenizer != nullptr);
  auto group = std::make_shared<Group>();
  group->request = std::move(request);
  group->done = std::move(done);
  const Request& kept = group->request;
  group->completion.id = kept.id;
  group->completion.prompt_tokens = kept.prompt.size();
  group->completion.choices.resize(kept.sampling.n);
  const std::size_t max_tokens = std::min<std::size_t>(kept.sampling.max_tokens, limits_.max_model_len - kept.prompt.size());
  ++num_in_flight_;
  for (std::uint32_t index = 0; index < kept.sampling.n; ++index) {
    Choice& choice = group->completion.choices[index];
    choice.index = index;
    // So that no step allocates; a very long answer may, now and then.
    constexpr std::size_t kMostReserved = 4096, kBytesOfToken = 4;
    choice.tokens.reserve(std::min(max_tokens, kMostReserved));
    if (options_.tokenizer != nullptr) choice.text.reserve(kBytesOfToken * std::min(max_tokens, kMostReserved));
    if (max_tokens == 0) continue;  // complete as it is, at the next step
    ++group->num_open;
    auto state = std::make_unique<ChoiceState>(ChoiceState{group, &choice, max_tokens, StopStrings(kept.sampling.stop), std::nullopt});
    if (kept.sampling.min_tokens > 0) {
      state->end_ids = kept.sampling.stop_token_ids;
      if (!kept.sampling.ignore_eos) state->end_ids.insert(state->end_ids.end(), options_.eos_ids.begin(), options_.eos_ids.end());
    }
    if (options_.tokenizer != nullptr) state->detokenizer.emplace(*options_.tokenizer);
    choices_.emplace(scheduler_.add(kept.prompt, kept.prompt.size() + max_tokens), std::move(state));
  }
  if (group->num_open == 0) complete_.push_back(std::move(group));
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
  state_of_row_.clear();
  selection_of_row_.clear();
  for (const ScheduledChunk& chunk : chunks_) add_chunk(chunk);
  counters_.selected_rows += plan_.selections.size();
}

void Coordinator::add_chunk(const ScheduledChunk& chunk) {
  device::StepBatch& batch = plan_.batch;
  const std::vector<TokenId>& tokens = scheduler_.tokens(chunk.sequence);
  const std::vector<std::uint32_t>& table = scheduler_.block_table(chunk.sequence);
  const std::size_t end = std::size_t{chunk.first_position} + chunk.num_tokens;
  batch.sequences.push_back({static_cast<std::uint32_t>(batch.num_tokens()), chunk.num_tokens, chunk.first_position,
                             static_cast<std::uint32_t>(batch.block_tables.size())});
  const std::size_t block_size = options_.scheduler.block_size;
  const std::size_t num_blocks = (end + block_size - 1) / block_size;
  batch.block_tables.insert(batch.block_tables.end(), table.begin(), table.begin() + static_cast<std::ptrdiff_t>(num_blocks));
  for (std::size_t position = chunk.first_position; position < end; ++position) {
    batch.token_ids.push_back(tokens[position]);
    batch.positions.push_back(static_cast<std::int32_t>(position));
  }
  if (!chunk.is_decode) counters_.prompt_tokens += chunk.num_tokens;
  if (!chunk.reaches_end) return;
  batch.logit_rows.push_back(static_cast<std::uint32_t>(batch.num_tokens() - 1));
  ChoiceState& state = *choices_.at(chunk.sequence);
  state_of_row_.push_back(&state);
  add_wish(state, tokens.size());
}

/// What rank 0 wants of the row that was just added.
void Coordinator::add_wish(const ChoiceState& state, std::size_t num_tokens) {
  const SamplingParams& params = state.params();
  const std::size_t first_change = plan_.changes.size();
  selection_of_row_.push_back(plan_.selections.size());
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

void Coordinator::take_result() {
  check_result();
  sample_rows();
  if (!fetch_plan_.fetched.empty()) sample_fetched_rows();
  std::size_t row = 0;
  for (const ScheduledChunk& chunk : chunks_) {
    if (!chunk.reaches_end) continue;
    take_token(chunk.sequence, *state_of_row_[row], std::move(samples_[row]));
    ++row;
  }
}

void Coordinator::check_result() const {
  const std::size_t num_rows = plan_.batch.logit_rows.size();
  if (result_.tops.size() != num_rows || result_.logits.size() != num_rows || result_.selections.size() != plan_.selections.size()) {
    throw std::logic_error("coordinator: the runner gave " + std::to_string(result_.tops.size()) + " tops, " +
                           std::to_string(result_.logits.size()) + " rows and " + std::to_string(result_.selections.size()) +
                           " selections for " + std::to_string(num_rows) + " logit rows");
  }
}

/// Fills samples_, but for the rows that have to be fetched: those stand in fetch_plan_ then.
void Coordinator::sample_rows() {
  const std::size_t num_rows = plan_.batch.logit_rows.size();
  samples_.assign(num_rows, {});
  fetch_plan_.clear();
  for (std::size_t row = 0; row < num_rows; ++row) {
    const ChoiceState& state = *state_of_row_[row];
    const std::size_t num_tokens = state.group->request.prompt.size() + state.choice->tokens.size();
    if (!sample_row(row, state, context_of(state, num_tokens), samples_[row]))
      fetch_plan_.fetched.push_back(static_cast<std::uint32_t>(row));
  }
}

/// False: the row is needed.
bool Coordinator::sample_row(std::size_t row, const ChoiceState& state, const SamplingContext& context, Sample& sample) {
  const device::Top& top = result_.tops[row];
  if (!top.finite) {
    sample.error = non_finite_error();
    return true;
  }
  switch (plan_.wanted[row]) {
    case RowWants::kTop:
      if (top.id < 0 || static_cast<std::size_t>(top.id) >= limits_.vocab_size) {
        throw std::logic_error("coordinator: the runner gave token " + std::to_string(top.id) + " of a vocabulary of " +
                               std::to_string(limits_.vocab_size));
      }
      sample.token = top.id;
      return true;
    case RowWants::kLogits: sample = sample_logits(result_.logits[row], state, context); return true;
    case RowWants::kSelection: return sampler_.select(result_.selections[selection_of_row_[row]], state.params(), context, sample);
  }
  return true;
}

Sample Coordinator::sample_logits(std::span<const float> logits, const ChoiceState& state, const SamplingContext& context) {
  if (logits.size() != limits_.vocab_size) {
    throw std::logic_error("coordinator: the runner gave a row of " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                           std::to_string(limits_.vocab_size));
  }
  return sampler_.sample(logits, state.params(), context);
}

/// The candidates of these rows were not enough: the next step asks for more.
void Coordinator::sample_fetched_rows() {
  fetch_plan_.kind = StepKind::kFetch;
  counters_.fetched_rows += fetch_plan_.fetched.size();
  run_everywhere(fetch_plan_, fetched_);
  is_over_ = true;  // as in step()
  if (fetched_.logits.size() != fetch_plan_.fetched.size()) {
    throw std::logic_error("coordinator: the runner fetched " + std::to_string(fetched_.logits.size()) + " rows instead of " +
                           std::to_string(fetch_plan_.fetched.size()));
  }
  for (std::size_t i = 0; i < fetched_.logits.size(); ++i) {
    const std::uint32_t row = fetch_plan_.fetched[i];
    ChoiceState& state = *state_of_row_[row];
    const std::size_t num_tokens = state.group->request.prompt.size() + state.choice->tokens.size();
    samples_[row] = sample_logits(fetched_.logits[i], state, context_of(state, num_tokens));
    state.needs_rows = state.num_candidates >= device::kMaxCandidates;
    state.num_candidates = std::min(4 * state.num_candidates, device::kMaxCandidates);
  }
}

void Coordinator::take_token(SequenceId sequence, ChoiceState& state, Sample&& sample) {
  Choice& choice = *state.choice;
  if (!sample.error.empty()) {
    choice.error = std::move(sample.error);
    finish(sequence, state, FinishReason::kError);
    return;
  }
  const SamplingParams& params = state.params();
  choice.tokens.push_back(sample.token);
  if (params.logprobs >= 0) choice.logprobs.push_back({sample.token, sample.logprob, std::move(sample.top)});
  ++counters_.generated_tokens;
  const bool ends = (!params.ignore_eos && contains(options_.eos_ids, sample.token)) || contains(params.stop_token_ids, sample.token);
  if (ends) {
    finish(sequence, state, FinishReason::kStop);
    return;
  }
  if (state.detokenizer) {
    std::string text = state.detokenizer->append(sample.token);
    choice.text += choice.tokens.size() < params.min_tokens ? std::move(text) : state.stop_strings.append(std::move(text));
  }
  if (state.stop_strings.found()) {
    finish(sequence, state, FinishReason::kStop);
  } else if (choice.tokens.size() >= state.max_tokens) {
    finish(sequence, state, FinishReason::kLength);
  } else {
    scheduler_.append(sequence, sample.token);
  }
}

void Coordinator::finish(SequenceId sequence, ChoiceState& state, FinishReason reason) {
  Choice& choice = *state.choice;
  if (state.detokenizer) {
    choice.text += state.stop_strings.append(state.detokenizer->finish());
    if (state.stop_strings.found() && reason == FinishReason::kLength) reason = FinishReason::kStop;
    choice.text += state.stop_strings.finish();
  }
  choice.finish_reason = reason;
  scheduler_.remove(sequence);
  const std::shared_ptr<Group> group = state.group;
  choices_.erase(sequence);
  if (--group->num_open == 0) complete_.push_back(group);
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
