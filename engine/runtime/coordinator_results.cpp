// What the coordinator makes of a step's result: samples, scores, the ends of answers.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/runtime/coordinator_state.h"

namespace lockstep::engine {
namespace {

bool contains(const std::vector<TokenId>& ids, TokenId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

void Coordinator::take_result() {
  check_result();
  sample_rows();
  if (!fetch_plan_.fetched.empty()) sample_fetched_rows();
  for (std::size_t row = 0; row < logit_rows_.size(); ++row) {
    const LogitRow& at = logit_rows_[row];
    if (!choices_.contains(at.sequence)) continue;  // an earlier row has ended it
    if (at.scored != 0) {
      take_score(row);
    } else if (at.state->group->search) {
      take_beam(at.state->group, at.state->beam, std::move(samples_[row]));
    } else {
      take_token(at.sequence, *at.state, std::move(samples_[row]));
    }
  }
  advance_beams();
}

void Coordinator::check_result() const {
  const std::size_t num_rows = plan_.batch.logit_rows.size();
  const std::size_t num_selections = result_.selections == nullptr ? 0 : result_.selections->size();
  if (result_.tops.size() != num_rows || result_.logits.size() != num_rows || num_selections != plan_.selections.size()) {
    throw std::logic_error("coordinator: the runner gave " + std::to_string(result_.tops.size()) + " tops, " +
                           std::to_string(result_.logits.size()) + " rows and " + std::to_string(num_selections) + " selections for " +
                           std::to_string(num_rows) + " logit rows");
  }
}

/// Fills samples_, but for the rows that have to be fetched: those stand in fetch_plan_ then.
void Coordinator::sample_rows() {
  const std::size_t num_rows = plan_.batch.logit_rows.size();
  samples_.assign(num_rows, {});
  fetch_plan_.clear();
  for (std::size_t row = 0; row < num_rows; ++row) {
    const ChoiceState& state = *logit_rows_[row].state;
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
    case RowWants::kSelection: {
      const SelectedRow& selected = result_.selections->row(logit_rows_[row].selection);
      const std::size_t scored = logit_rows_[row].scored;
      if (scored == 0) {
        const Sampler::Selected found = sampler_.select(selected, state.params(), context, sample);
        logit_rows_[row].wants_more = found == Sampler::Selected::kTooFew;
        return found == Sampler::Selected::kYes;
      }
      return sampler_.score(selected, state.group->request.prompt[scored], std::max(state.params().logprobs, 0), sample);
    }
  }
  return true;
}

std::span<const float> Coordinator::checked_row(std::span<const float> logits) const {
  if (logits.size() != limits_.vocab_size) {
    throw std::logic_error("coordinator: the runner gave a row of " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                           std::to_string(limits_.vocab_size));
  }
  return logits;
}

Sample Coordinator::sample_logits(std::span<const float> logits, const ChoiceState& state, const SamplingContext& context) {
  return sampler_.sample(checked_row(logits), state.params(), context);
}

/// What is known of these rows was not enough. Where candidates were missing, the next step asks for more.
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
    ChoiceState& state = *logit_rows_[row].state;
    if (const std::size_t scored = logit_rows_[row].scored; scored != 0) {
      samples_[row] =
          sampler_.score(checked_row(fetched_.logits[i]), state.group->request.prompt[scored], std::max(state.params().logprobs, 0));
      continue;
    }
    const std::size_t num_tokens = state.group->request.prompt.size() + state.choice->tokens.size();
    samples_[row] = sample_logits(fetched_.logits[i], state, context_of(state, num_tokens));
    if (!logit_rows_[row].wants_more) continue;
    state.needs_rows = state.num_candidates >= device::kMaxCandidates;
    state.num_candidates = std::min(4 * state.num_candidates, device::kMaxCandidates);
  }
}

void Coordinator::take_score(std::size_t row) {
  const LogitRow& at = logit_rows_[row];
  Group& group = *at.state->group;
  Sample& sample = samples_[row];
  if (!sample.error.empty()) {
    at.state->choice->error = std::move(sample.error);
    return finish(at.sequence, *at.state, FinishReason::kError);
  }
  group.completion.prompt_logprobs[at.scored - group.request.first_scored] = {sample.token, sample.logprob, std::move(sample.top),
                                                                              result_.tops[row].id == sample.token};
  if (at.state->max_tokens == 0 && at.scored + 1 == group.request.prompt.size()) finish(at.sequence, *at.state, FinishReason::kLength);
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

}  // namespace lockstep::engine
