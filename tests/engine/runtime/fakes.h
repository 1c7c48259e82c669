#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cpu/vocabulary_sum.h"
#include "engine/runtime/step_runner.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine::testing {

inline std::uint64_t mix(std::uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// A model whose logits are a function of all tokens before, as it finds them in a paged cache of tokens: what a scheduler or a block table
/// gets wrong changes them. With several tables every one of them has the tokens, those that slide at the positions that a query reads; a
/// token that is another one there is an error.
class HistoryModel : public StepRunner, private SelectedRows {
 public:
  HistoryModel(std::size_t num_blocks, std::size_t block_size, std::size_t vocab_size, BlockTables tables = {}, std::size_t window = 0)
      : block_size_(block_size), vocab_size_(vocab_size), tables_(tables), window_(window), cache_(num_blocks * block_size, -1) {}

  void run(const StepPlan& plan, StepResult& result) override {
    if (plan.kind == StepKind::kFetch) {
      result = {};
      for (const std::uint32_t row : plan.fetched) result.logits.push_back(rows_.at(row));
      num_fetched_ += plan.fetched.size();
      return;
    }
    const device::StepBatch& batch = plan.batch;
    check_blocks(batch, block_size_, cache_.size() / block_size_, tables_.all());
    for (const auto& sequence : batch.sequences) {
      for (std::uint32_t i = 0; i < sequence.num_tokens; ++i) {
        const auto row = sequence.first_token + i;
        for (std::size_t table = 0; table < tables_.all(); ++table)
          slot(batch, sequence, table, static_cast<std::size_t>(batch.positions[row])) = batch.token_ids[row];
      }
    }
    rows_.assign(batch.logit_rows.size(), {});
    result.tops.clear();
    result.logits.clear();
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
      rows_[i] = logits(history(batch, batch.logit_rows[i]));
      const auto best = std::max_element(rows_[i].begin(), rows_[i].end());
      const bool finite = std::all_of(rows_[i].begin(), rows_[i].end(), [](float logit) { return std::isfinite(logit); });
      result.tops.push_back({*best, static_cast<std::int32_t>(best - rows_[i].begin()), finite});
      result.logits.push_back(plan.wanted[i] == RowWants::kLogits ? std::span<const float>(rows_[i]) : std::span<const float>());
    }
    select(plan, result);
    num_tokens_ += batch.num_tokens();
    largest_step_ = std::max(largest_step_, batch.num_tokens());
    most_logit_rows_ = std::max(most_logit_rows_, batch.logit_rows.size());
    last_plan_ = plan;
  }

  /// The "model".
  virtual std::vector<float> logits(const std::vector<std::int32_t>& tokens) const {
    std::uint64_t state = 1;
    for (const std::int32_t token : tokens) state = mix(state ^ static_cast<std::uint64_t>(token + 1));
    std::vector<float> row(vocab_size_);
    for (float& logit : row) {
      state = mix(state);
      logit = static_cast<float>(state % 4096) / 512.0f;  // ties now and then
    }
    return row;
  }

  std::uint64_t num_tokens() const { return num_tokens_; }
  std::uint64_t num_fetched() const { return num_fetched_; }
  std::size_t largest_step() const { return largest_step_; }
  std::size_t most_logit_rows() const { return most_logit_rows_; }
  const StepPlan& last_plan() const { return last_plan_; }

 protected:
  std::size_t vocab_size() const { return vocab_size_; }

 private:
  using Candidates = std::vector<FirstCandidates::Candidate>;
  void select(const StepPlan& plan, StepResult& result) {
    selected_.clear();
    found_.assign(2 * plan.selections.size(), {});
    std::span<const device::LogitChange> changes(plan.changes);
    for (std::size_t i = 0; i < plan.selections.size(); ++i) {
      const device::SelectionRow& wanted = plan.selections[i];
      const std::vector<float>& row = rows_.at(wanted.row);
      std::vector<float> changed = row;
      for (const device::LogitChange& change : changes.first(wanted.num_changes))
        changed[change.id] = device::changed(row[change.id], change);
      changes = changes.subspan(wanted.num_changes);
      SelectedRow selected;
      selected.vocab_size = row.size();
      selected.num_masked = wanted.num_masked;
      selected.finite = std::none_of(changed.begin(), changed.end(),
                                     [](float logit) { return std::isnan(logit) || logit > std::numeric_limits<float>::max(); });
      selected.candidates = FirstCandidates(first_of(found_[2 * i], changed, row, wanted.num_candidates));
      if (wanted.num_changes > 0) selected.best = FirstCandidates(first_of(found_[2 * i + 1], row, row, wanted.num_best));
      const device::Isa isa = device::Isa::kPortable;
      selected.maximum = device::maximum(row, isa);
      if (wanted.scale > 0.0) selected.mass = device::sum_of_exponentials(changed, device::maximum(changed, isa), wanted.scale, isa);
      if (wanted.log_sum != device::LogSum::kNone) selected.log_mass = device::sum_of_exponentials(row, selected.maximum, 1.0, isa);
      selected_.push_back(selected);
    }
    result.selections = this;
  }
  std::size_t size() const override { return selected_.size(); }
  const SelectedRow& row(std::size_t index) override { return selected_.at(index); }
  static Candidates& first_of(Candidates& found, const std::vector<float>& changed, const std::vector<float>& row, std::size_t count) {
    for (std::uint32_t id = 0; id < row.size(); ++id) found.push_back({changed[id], row[id], id});
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(std::min(found.size(), count)), found.end());
    return found;
  }

  std::int32_t& slot(const device::StepBatch& batch, const device::StepBatch::Sequence& sequence, std::size_t table, std::size_t position) {
    const std::size_t first = device::StepBatch::first_entry(sequence, table, block_size_);
    return cache_[batch.block_tables[first + position / block_size_] * block_size_ + position % block_size_];
  }
  std::vector<std::int32_t> history(const device::StepBatch& batch, std::uint32_t row) {
    for (const auto& sequence : batch.sequences) {
      if (row < sequence.first_token || row >= sequence.first_token + sequence.num_tokens) continue;
      std::vector<std::int32_t> tokens;
      const auto end = static_cast<std::size_t>(batch.positions[row]) + 1;
      const std::size_t first_seen = end > window_ ? (end - window_) / 64 * 64 : 0;  // keys are read in spans
      for (std::size_t position = 0; position < end; ++position) {
        tokens.push_back(slot(batch, sequence, 0, position));
        for (std::size_t table = 1; table < tables_.all(); ++table) {
          if (table >= tables_.whole && position < first_seen) continue;
          if (slot(batch, sequence, table, position) != tokens.back())
            throw std::logic_error("table " + std::to_string(table) + " has another token at position " + std::to_string(position));
        }
      }
      return tokens;
    }
    throw std::logic_error("row without a sequence");
  }

  std::size_t block_size_;
  std::size_t vocab_size_;
  BlockTables tables_;
  std::size_t window_;
  std::vector<std::int32_t> cache_;
  std::vector<std::vector<float>> rows_;
  std::vector<Candidates> found_;
  std::vector<SelectedRow> selected_;
  std::uint64_t num_tokens_ = 0;
  std::uint64_t num_fetched_ = 0;
  std::size_t largest_step_ = 0;
  std::size_t most_logit_rows_ = 0;
  StepPlan last_plan_;
};

/// Says the same tokens after any prompt of one token: after n tokens, script[n - 1].
class ScriptModel : public HistoryModel {
 public:
  ScriptModel(std::vector<std::int32_t> script, std::size_t vocab_size) : HistoryModel(64, 16, vocab_size), script_(std::move(script)) {}
  std::vector<float> logits(const std::vector<std::int32_t>& tokens) const override {
    std::vector<float> row(vocab_size(), 0.0f);
    row[static_cast<std::size_t>(script_.at(tokens.size() - 1))] = 10.0f;
    return row;
  }

 private:
  std::vector<std::int32_t> script_;
};

/// Tokens that are given by their bytes; some of them special.
class FakeTokenizer : public text::Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens, std::vector<text::TokenId> special = {})
      : tokens_(std::move(tokens)), special_(std::move(special)) {}
  std::vector<text::TokenId> encode(std::string_view, bool, bool) const override { throw std::logic_error("not needed"); }
  std::string_view bytes_of(text::TokenId id, bool include_special) const override {
    if (!include_special && is_special(id)) return {};
    return tokens_.at(static_cast<std::size_t>(id));
  }
  std::size_t vocab_size() const override { return tokens_.size(); }
  bool is_special(text::TokenId id) const override { return std::find(special_.begin(), special_.end(), id) != special_.end(); }
  text::TokenId bos_id() const override { return -1; }
  text::TokenId eos_id() const override { return -1; }
  text::TokenId id_of(std::string_view token) const override {
    const auto found = std::find(tokens_.begin(), tokens_.end(), token);
    return found == tokens_.end() ? -1 : static_cast<text::TokenId>(found - tokens_.begin());
  }

 private:
  std::vector<std::string> tokens_;
  std::vector<text::TokenId> special_;
};

}  // namespace lockstep::engine::testing
