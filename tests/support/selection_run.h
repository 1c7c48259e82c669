#pragma once

#include <cstdint>
#include <vector>

#include "engine/sampling/sampler.h"
#include "tests/support/session_run.h"

namespace lockstep::test {

/// A row of logits, and what is to be selected from it.
struct SelectionCase {
  std::vector<float> logits;
  engine::SamplingParams params;
  std::vector<std::int32_t> prompt, generated, end_ids;
  std::uint32_t num_candidates = engine::kFirstCandidates;

  engine::SamplingContext context() const { return {prompt, generated, 0, prompt.size() + generated.size(), end_ids}; }
};

struct SelectionOutcome {
  bool is_enough = false;  // else the row would be fetched
  engine::Sample sample;
};

/// Random logits (wide and narrow, with ties, signed zeros) and parameters (each of them on in some). The same for a seed.
std::vector<SelectionCase> random_selection_cases(std::size_t count, std::size_t vocab_size, std::uint32_t seed);

/// Selects for all cases in one step on the ranks of `setup`, each with its part of the vocabulary.
std::vector<SelectionOutcome> select_on_ranks(const RunSetup& setup, const std::vector<SelectionCase>& cases);

/// Compares each outcome with Sampler::sample() of the whole row, byte for byte. @return how many were enough
std::size_t expect_outcomes_of_whole_rows(const std::vector<SelectionCase>& cases, const std::vector<SelectionOutcome>& outcomes);

}  // namespace lockstep::test
