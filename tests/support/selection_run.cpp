#include "tests/support/selection_run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "comm/threads.h"
#include "device/cpu/cpu_device.h"
#include "engine/runtime/rank_selection.h"
#include "parallel/vocab_merge.h"

namespace lockstep::test {
namespace {

using engine::SamplingParams;

std::vector<float> random_row(std::size_t size, std::mt19937& random) {
  static constexpr float kDeviations[] = {0.3f, 1.0f, 3.0f, 8.0f};
  std::normal_distribution<float> normal(0.0f, kDeviations[random() % 4]);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(random);
  const auto kind = random() % 4;
  if (kind == 0) {
    for (float& logit : row) logit = std::round(logit);  // ties, zeros of both signs
  } else if (kind == 1) {
    for (std::size_t i = 0; i < 6; ++i) row[random() % size] += 12.0f;  // a few stand out, as in a language model
  }
  return row;
}

void set_cuts(SamplingParams& params, std::mt19937& random) {
  static constexpr float kTemperatures[] = {0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 1.7f, 40.0f};
  static constexpr std::int32_t kTopK[] = {0, 0, 0, 1, 3, 20, 60, 900, 5000};
  static constexpr float kTopP[] = {1.0f, 1.0f, 0.0f, 0.5f, 0.9f, 0.99f, 0.9999f};
  static constexpr float kMinP[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f};
  static constexpr float kTypical[] = {1.0f, 1.0f, 1.0f, 0.9f, 0.2f};
  params.temperature = kTemperatures[random() % std::size(kTemperatures)];
  params.top_k = kTopK[random() % std::size(kTopK)];
  params.top_p = kTopP[random() % std::size(kTopP)];
  params.min_p = kMinP[random() % std::size(kMinP)];
  params.typical_p = kTypical[random() % std::size(kTypical)];
  params.logprobs = static_cast<std::int32_t>(random() % 7) - 1;
  params.seed = random();
}

void set_changes(SelectionCase& to, std::size_t vocab_size, std::mt19937& random) {
  SamplingParams& params = to.params;
  if (random() % 3 == 0) params.repetition_penalty = 1.3f;
  if (random() % 3 == 0) params.presence_penalty = -0.5f;
  if (random() % 3 == 0) params.frequency_penalty = 0.25f;
  if (random() % 3 == 0) params.no_repeat_ngram_size = 1 + static_cast<std::uint32_t>(random() % 3);
  if (random() % 3 == 0) {
    const auto id = static_cast<std::int32_t>(random() % vocab_size);
    params.logit_bias = {{id, 20.0f}, {id + 1, -1.5f}, {id + 2, -INFINITY}};  // the last ones may be outside
  }
  if (random() % 3 == 0) params.min_tokens = 30;
  to.end_ids = {static_cast<std::int32_t>(std::max_element(to.logits.begin(), to.logits.end()) - to.logits.begin())};
}

std::vector<parallel::Range> shares_of(std::size_t vocab_size, std::size_t num_ranks) {
  std::vector<parallel::Range> shares;
  const std::size_t segments = (vocab_size + device::kVocabularySegment - 1) / device::kVocabularySegment;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const parallel::Range share = parallel::even_share(segments, rank, num_ranks);
    shares.push_back(
        {std::min(share.begin * device::kVocabularySegment, vocab_size), std::min(share.end * device::kVocabularySegment, vocab_size)});
  }
  return shares;
}

/// One rank's work. Rank 0 returns the outcomes.
std::vector<SelectionOutcome> run_rank(device::Device& device, comm::Communicator& communicator, const std::vector<SelectionCase>& cases) {
  const std::size_t vocab_size = cases.front().logits.size();
  const auto num_ranks = static_cast<std::size_t>(communicator.size());
  const std::vector<parallel::Range> shares = shares_of(vocab_size, num_ranks);
  const parallel::Range mine = shares[static_cast<std::size_t>(communicator.rank())];
  device.prepare_steps(
      {.max_tokens = cases.size(), .max_logit_rows = cases.size(), .max_sequences = 1, .max_positions = 1, .max_sequence_blocks = 1});
  engine::RankSelection selection(shares, cases.size(), device, communicator);

  std::vector<float> own;
  std::vector<device::SelectionRow> rows;
  std::vector<device::LogitChange> changes;
  engine::LogitChanges collector;
  for (std::size_t row = 0; row < cases.size(); ++row) {
    own.insert(own.end(), cases[row].logits.begin() + static_cast<std::ptrdiff_t>(mine.begin),
               cases[row].logits.begin() + static_cast<std::ptrdiff_t>(mine.end));
    if (!engine::can_select(cases[row].params)) continue;
    const std::size_t first = changes.size();
    collector.collect(cases[row].params, cases[row].context(), vocab_size, changes);
    rows.push_back(engine::selection_row(cases[row].params, std::span(changes).subspan(first), cases[row].num_candidates));
    rows.back().row = static_cast<std::uint32_t>(row);
  }
  const auto buffer = device.allocate(own.size() * sizeof(float));
  const device::Matrix logits{buffer->data(), mine.size(), cases.size(), device::Activation::kFloat32};
  device.write_floats(own, buffer->data());
  std::vector<device::Top> tops(cases.size()), all_tops(communicator.rank() == 0 ? cases.size() * num_ranks : 0), merged_tops(cases.size());
  if (mine.size() > 0) device.top_of_rows(logits, cases.size());
  selection.select(logits, rows, changes);
  if (mine.size() > 0) device.read_tops(tops);
  const std::vector<std::size_t> bytes(num_ranks, tops.size() * sizeof(device::Top));
  communicator.gather(std::as_bytes(std::span(tops)), std::as_writable_bytes(std::span(all_tops)), bytes, 0);
  std::vector<std::size_t> sizes;
  for (const parallel::Range share : shares) sizes.push_back(share.size());
  if (communicator.rank() == 0) parallel::merge_tops(all_tops, sizes, merged_tops);
  engine::SelectedRows* selected = selection.gather(rows, changes, merged_tops);

  std::vector<float> after(own.size());
  if (!after.empty()) {  // else the rank has no ids
    device.read_floats(logits, 0, cases.size(), after);
    if (std::memcmp(after.data(), own.data(), own.size() * sizeof(float)) != 0) throw std::logic_error("the logits are not as they were");
  }
  std::vector<SelectionOutcome> outcomes(cases.size());
  if (communicator.rank() != 0) return outcomes;
  engine::Sampler sampler;
  for (std::size_t i = 0; i < selected->size(); ++i) {
    SelectionOutcome& outcome = outcomes[rows[i].row];
    const SelectionCase& of = cases[rows[i].row];
    outcome.is_enough = sampler.select(selected->row(i), of.params, of.context(), outcome.sample) == engine::Sampler::Selected::kYes;
  }
  return outcomes;
}

}  // namespace

std::vector<SelectionCase> random_selection_cases(std::size_t count, std::size_t vocab_size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<SelectionCase> cases(count);
  for (SelectionCase& to : cases) {
    to.logits = random_row(vocab_size, random);
    for (std::size_t i = 0; i < 12; ++i) {
      to.prompt.push_back(static_cast<std::int32_t>(random() % vocab_size));
      to.generated.push_back(static_cast<std::int32_t>(random() % 4 * (vocab_size / 4)));
    }
    set_cuts(to.params, random);
    if (random() % 2 == 0) set_changes(to, vocab_size, random);
    if (random() % 4 == 0) to.num_candidates = 256;
  }
  return cases;
}

std::vector<SelectionOutcome> select_on_ranks(const RunSetup& setup, const std::vector<SelectionCase>& cases) {
  comm::CommunicatorOptions options;
  options.deadline = std::chrono::seconds(60);
  auto communicators = comm::make_thread_communicators(setup.ranks, options);
  std::vector<SelectionOutcome> outcomes;
  std::atomic<int> took_part{0};
  std::vector<std::string> errors(static_cast<std::size_t>(setup.ranks));
  const auto run = [&](std::size_t index) {
    comm::Communicator& communicator = *communicators[index];
    try {
      const comm::CudaRank rank = setup.open_rank
                                      ? setup.open_rank(communicator)
                                      : comm::CudaRank{device::make_cpu_device({.num_threads = setup.threads, .isa = setup.isa}), nullptr};
      std::vector<SelectionOutcome> mine = run_rank(*rank.device, rank.communicator ? *rank.communicator : communicator, cases);
      took_part += communicator.size() == setup.ranks ? 1 : 0;
      if (index == 0) outcomes = std::move(mine);
      communicator.barrier();
    } catch (const std::exception& error) {
      errors[index] = error.what();
      communicator.abort(error.what());
    }
  };
  std::vector<std::thread> peers;
  for (std::size_t rank = 1; rank < errors.size(); ++rank) peers.emplace_back([&, rank] { run(rank); });
  run(0);
  for (std::thread& peer : peers) peer.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(took_part, setup.ranks);
  return outcomes;
}

std::size_t expect_outcomes_of_whole_rows(const std::vector<SelectionCase>& cases, const std::vector<SelectionOutcome>& outcomes) {
  EXPECT_EQ(outcomes.size(), cases.size());
  if (outcomes.size() != cases.size()) return 0;
  engine::Sampler sampler;
  std::size_t num_enough = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!outcomes[i].is_enough) continue;
    ++num_enough;
    const engine::Sample expected = sampler.sample(cases[i].logits, cases[i].params, cases[i].context());
    const engine::Sample& found = outcomes[i].sample;
    EXPECT_EQ(found.token, expected.token) << "case " << i;
    EXPECT_EQ(found.error, expected.error) << "case " << i;
    EXPECT_EQ(found.logprob, expected.logprob) << "case " << i;
    EXPECT_EQ(found.top, expected.top) << "case " << i;
  }
  return num_enough;
}

}  // namespace lockstep::test
