// Beam search over the scheduler's sequences. A beam's sequence stays only while all beams of the search are in step: else it is dropped,
// and what it computed waits in the prefix cache, so that searches can never block each other with half of their beams running. For the
// same reason a beam whose parent has another child starts as a new sequence: it finds the whole blocks of its beginning in the cache.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/runtime/coordinator_state.h"

namespace lockstep::engine {

std::vector<TokenId> Coordinator::end_ids_of(const SamplingParams& params) const {
  std::vector<TokenId> ids = params.stop_token_ids;
  if (!params.ignore_eos) ids.insert(ids.end(), options_.eos_ids.begin(), options_.eos_ids.end());
  return ids;
}

void Coordinator::check_beams(const SamplingParams& params) const {
  const std::uint32_t num_beams = params.beams->num_beams;
  if (num_beams < params.n) throw std::invalid_argument(std::to_string(params.n) + " answers of " + std::to_string(num_beams) + " beams");
  const std::size_t num_ends = end_ids_of(params).size();
  const std::uint64_t wanted = beam_candidates(1, num_ends) * std::uint64_t{num_beams};
  if (wanted > device::kMaxCandidates) {
    throw std::invalid_argument(std::to_string(num_beams) + " beams, with " + std::to_string(num_ends) +
                                " tokens that end an answer, need the " + std::to_string(wanted) +
                                " best of a row: " + std::to_string(device::kMaxCandidates) + " are possible");
  }
}

void Coordinator::submit_beams(const std::shared_ptr<Group>& group, std::size_t max_tokens) {
  SamplingParams& params = group->request.sampling;
  group->search = std::make_unique<BeamSearch>(*params.beams, static_cast<std::uint32_t>(max_tokens), end_ids_of(params));
  // What is asked of a row: its best tokens, as they are.
  SamplingParams wish;
  wish.temperature = 0.0f;
  wish.logprobs = static_cast<std::int32_t>(group->search->num_candidates());
  wish.max_tokens = static_cast<std::uint32_t>(max_tokens);
  wish.n = params.n;
  params = wish;
  group->num_open = 1;
  group->sequences = {0};
  start_beams(group);
}

/// Gives the scheduler the beams that it does not have.
void Coordinator::start_beams(const std::shared_ptr<Group>& group) {
  const std::vector<BeamSearch::Beam>& beams = group->search->beams();
  const Request& request = group->request;
  group->rows.assign(beams.size(), {});
  group->num_missing = beams.size();
  for (std::size_t beam = 0; beam < beams.size(); ++beam) {
    if (group->sequences[beam] != 0) continue;
    std::vector<TokenId> tokens = request.prompt;
    tokens.insert(tokens.end(), beams[beam].tokens.begin(), beams[beam].tokens.end());
    auto state = std::make_unique<ChoiceState>(
        ChoiceState{group, &group->completion.choices[0], request.sampling.max_tokens, StopStrings({}), std::nullopt});
    state->beam = beam;
    group->sequences[beam] = add_sequence(std::move(tokens), request.prompt.size() + request.sampling.max_tokens, {}, std::move(state));
  }
}

void Coordinator::drop_beam(SequenceId& sequence) {
  if (sequence == 0) return;
  scheduler_.remove(sequence);
  choices_.erase(sequence);
  sequence = 0;
}

/// `group` by value: an error ends the sequence that holds it.
void Coordinator::take_beam(std::shared_ptr<Group> group, std::size_t beam, Sample&& sample) {
  if (!sample.error.empty()) {
    for (Choice& choice : group->completion.choices) {
      choice.error = sample.error;
      choice.finish_reason = FinishReason::kError;
    }
    return end_beams(group);
  }
  ++counters_.generated_tokens;
  group->rows[beam] = std::move(sample.top);
  --group->num_missing;
  if (std::find(beam_groups_.begin(), beam_groups_.end(), group) == beam_groups_.end()) beam_groups_.push_back(std::move(group));
}

/// Goes on with the searches that got a row in this step.
void Coordinator::advance_beams() {
  for (const auto& group : std::exchange(beam_groups_, {})) {
    if (group->num_open == 0) continue;  // failed
    if (group->num_missing > 0) {
      for (std::size_t beam = 0; beam < group->rows.size(); ++beam) {
        if (!group->rows[beam].empty()) drop_beam(group->sequences[beam]);
      }
    } else if (group->search->advance(group->rows)) {
      continue_beams(group);
    } else {
      finish_beams(group);
    }
  }
}

void Coordinator::continue_beams(const std::shared_ptr<Group>& group) {
  const std::vector<BeamSearch::Beam>& beams = group->search->beams();
  std::vector<SequenceId> old = std::exchange(group->sequences, std::vector<SequenceId>(beams.size(), 0));
  for (std::size_t beam = 0; beam < beams.size(); ++beam) {
    SequenceId& parent = old[group->search->parents()[beam]];
    if (parent == 0) continue;  // dropped, or another child's
    scheduler_.append(parent, beams[beam].tokens.back());
    choices_.at(parent)->beam = beam;
    group->sequences[beam] = std::exchange(parent, 0);
  }
  for (SequenceId& sequence : old) drop_beam(sequence);
  start_beams(group);
}

void Coordinator::finish_beams(const std::shared_ptr<Group>& group) {
  const std::vector<BeamSearch::Finished>& finished = group->search->finished();
  for (std::size_t i = 0; i < group->completion.choices.size(); ++i) {
    Choice& choice = group->completion.choices[i];
    if (i >= finished.size()) {
      choice.error = "the beam search found only " + std::to_string(finished.size()) + " answers";
      choice.finish_reason = FinishReason::kError;
      continue;
    }
    choice.tokens = finished[i].tokens;
    choice.beam_score = finished[i].score;
    choice.finish_reason = finished[i].at_end_token ? FinishReason::kStop : FinishReason::kLength;
    if (options_.tokenizer == nullptr) continue;
    text::IncrementalDetokenizer detokenizer(*options_.tokenizer, true, group->request.prompt);
    const std::size_t num_of_text = choice.tokens.size() - (finished[i].at_end_token ? 1 : 0);
    for (std::size_t at = 0; at < num_of_text; ++at) choice.text += detokenizer.append(choice.tokens[at]);
    choice.text += detokenizer.finish();
  }
  end_beams(group);
}

void Coordinator::end_beams(const std::shared_ptr<Group>& group) {
  for (SequenceId& sequence : group->sequences) drop_beam(sequence);
  group->num_open = 0;
  complete_.push_back(group);
}

}  // namespace lockstep::engine
