#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/coordinator.h"
#include "engine/sampling/beam_search.h"

namespace lockstep::engine {

/// What the files of the coordinator share.
struct Coordinator::Group {
  Request request;
  OnCompletion done;
  Completion completion;
  std::size_t num_open = 0;  // choices that are not finished; of a beam search: 1 until it is over
  // A beam search:
  std::unique_ptr<BeamSearch> search;
  std::vector<BeamSearch::Row> rows;  // [beams]
  std::vector<SequenceId> sequences;  // [beams]; 0: not with the scheduler
  std::size_t num_missing = 0;        // rows of this step of the search
};

struct Coordinator::ChoiceState {
  std::shared_ptr<Group> group;
  Choice* choice = nullptr;    // in group->completion; of a beam search: the first, without its tokens
  std::size_t max_tokens = 0;  // the request's, or what the context has room for
  StopStrings stop_strings;
  std::optional<text::IncrementalDetokenizer> detokenizer;
  std::vector<TokenId> end_ids{};                   // masked before min_tokens
  std::uint32_t num_candidates = kFirstCandidates;  // as many as were enough lately
  bool needs_rows = false;                          // not even the most were

  std::size_t beam = 0;  // of a beam search

  const SamplingParams& params() const { return group->request.sampling; }
};

}  // namespace lockstep::engine
