#include "engine/runtime/scheduler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::engine {
namespace {

/// Attention reads keys in spans of so many positions (docs/numerics.md, N5), those that a query sees and their neighbours.
constexpr std::size_t kAttentionSpan = 64;

SchedulerOptions checked(SchedulerOptions options) {
  const auto at_least_one = [](std::size_t value, const char* name) {
    if (value == 0) throw std::invalid_argument(std::string("scheduler: ") + name + " must be at least 1");
  };
  at_least_one(options.max_num_seqs, "max_num_seqs");
  at_least_one(options.max_num_batched_tokens, "max_num_batched_tokens");
  at_least_one(options.num_blocks, "num_blocks");
  at_least_one(options.block_size, "block_size");
  if (options.tables.whole == 0) options.prefix_caching = false;
  return options;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(checked(options)), blocks_(options.num_blocks, options.block_size, options.tables) {}

SequenceId Scheduler::add(std::vector<TokenId> tokens, std::size_t max_length, std::uint64_t prefix_group, ScoredPositions scored) {
  if (tokens.empty()) throw std::invalid_argument("scheduler: a sequence needs at least one token");
  if (max_length > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::invalid_argument("scheduler: " + std::to_string(max_length) + " tokens are more than positions can count");
  }
  max_length = std::max(max_length, tokens.size());
  // The last token of an answer is never computed itself, but one that is given is.
  const std::size_t num_positions = std::max(tokens.size(), max_length - 1);
  if (blocks_.blocks_for(num_positions) > options_.num_blocks) {
    throw std::invalid_argument("scheduler: a sequence of " + std::to_string(max_length) + " tokens can never fit into a KV cache of " +
                                std::to_string(options_.num_blocks) + " blocks of " + std::to_string(options_.block_size) + " tokens");
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(tokens);
  // So that no step allocates; a very long answer may, now and then.
  constexpr std::size_t kMostReserved = 4096;
  const std::size_t reserved = std::min(max_length, sequence->tokens.size() + kMostReserved);
  sequence->tokens.reserve(reserved);
  sequence->stretches.reserve(blocks_.stretches_for(reserved));
  sequence->max_length = max_length;
  sequence->prefix_group = prefix_group;
  sequence->scored = scored;
  const SequenceId id = next_id_++;
  waiting_.emplace_hint(waiting_.end(), id, std::move(sequence));
  return id;
}

void Scheduler::schedule(std::vector<ScheduledChunk>& chunks) {
  chunks.clear();
  if (in_step_) throw std::logic_error("scheduler: the previous step was not advanced");
  if (running_.empty() && waiting_.empty()) return;
  ++num_steps_;
  if (options_.preempt_every != 0 && num_steps_ % options_.preempt_every == 0) preempt_for_test();
  Budget budget{options_.max_num_batched_tokens, std::numeric_limits<std::size_t>::max()};
  if (options_.max_logit_rows != 0) budget.logit_rows = options_.max_logit_rows;
  schedule_decodes(budget);
  schedule_prefills(budget);
  admit(budget);
  list_chunks(chunks);
  if (chunks.empty())
    throw std::logic_error("scheduler: there are sequences, but nothing to compute (was append() or remove() forgotten?)");
  in_step_ = true;
}

void Scheduler::schedule_decodes(Budget& budget) {
  for (auto it = running_.begin(); it != running_.end() && budget.tokens > 0 && budget.logit_rows > 0;) {
    Sequence& sequence = *it->second;
    if (!sequence.decodes() || sequence.remaining() == 0) {
      ++it;
      continue;
    }
    bool is_victim_itself = false;
    while (!blocks_.extend(sequence.stretches, sequence.num_computed + 1)) {
      const auto youngest = std::prev(running_.end());
      is_victim_itself = youngest == it;
      preempt(youngest);  // younger ones come later in this loop, so none of them is part of the step yet
      if (is_victim_itself) break;
    }
    if (is_victim_itself) break;
    sequence.scheduled = 1;
    --budget.tokens;
    --budget.logit_rows;
    ++it;
  }
}

/// Logit rows of the next `count` tokens: the scored ones, and the last known one.
std::size_t Scheduler::Sequence::logit_rows(std::size_t count) const {
  const std::size_t end = num_computed + count;
  const std::size_t first_scored = std::max(num_computed, scored.begin), end_scored = std::min(end, scored.end);
  const std::size_t num_scored = end_scored > first_scored ? end_scored - first_scored : 0;
  const bool end_is_scored = scored.begin < end && end <= scored.end;
  return num_scored + (end == tokens.size() && !end_is_scored ? 1 : 0);
}

void Scheduler::schedule_prefill(Sequence& sequence, Budget& budget) const {
  std::size_t count = std::min(sequence.remaining(), budget.tokens);
  if (options_.prefill_chunk != 0) count = std::min(count, options_.prefill_chunk);
  while (count > 0 && sequence.logit_rows(count) > budget.logit_rows) --count;
  sequence.scheduled = static_cast<std::uint32_t>(count);
  budget.tokens -= count;
  budget.logit_rows -= sequence.logit_rows(count);
}

void Scheduler::schedule_prefills(Budget& budget) {
  for (auto& [id, sequence] : running_) {
    if (budget.tokens == 0) return;
    if (!sequence->decodes()) schedule_prefill(*sequence, budget);
  }
}

void Scheduler::admit(Budget& budget) {
  while (budget.tokens > 0 && budget.logit_rows > 0 && !waiting_.empty() && running_.size() < options_.max_num_seqs) {
    Sequence& sequence = *waiting_.begin()->second;
    // Some room for those who already run, or the newcomer would be sent back at once.
    const std::size_t all = options_.num_blocks / options_.tables.all();
    const std::size_t reserve = running_.empty() ? 0 : std::min(running_.size(), 1 + all / 64);
    find_prefix(sequence);
    const std::size_t wanted = blocks_.stretches_for(sequence.tokens.size()) - sequence.num_shared + reserve;
    if (wanted * options_.tables.all() > blocks_.num_free()) return release(sequence);
    blocks_.extend(sequence.stretches, sequence.tokens.size());
    sequence.num_computed = sequence.num_shared * options_.block_size;
    num_cached_tokens_ += sequence.num_computed;
    sequence.prefill_length = sequence.tokens.size();
    sequence.admitted_length = sequence.tokens.size();
    schedule_prefill(sequence, budget);
    running_.insert(waiting_.extract(waiting_.begin()));
  }
}

StretchContent Scheduler::content_of(const Sequence& sequence, std::size_t stretch) const {
  const std::size_t size = options_.block_size;
  StretchContent content{sequence.prefix_group, std::nullopt, std::span(sequence.tokens).subspan(stretch * size, size)};
  if (stretch > 0) content.previous = sequence.stretches[stretch - 1];
  return content;
}

/// The first one that sliding layers read when so many positions have been computed.
std::size_t Scheduler::first_seen_stretch(std::size_t num_computed) const {
  if (options_.window == 0 || num_computed < options_.window) return 0;
  const std::size_t first_seen = num_computed + 1 - options_.window;  // by the next query
  return first_seen / kAttentionSpan * kAttentionSpan / options_.block_size;
}

void Scheduler::find_prefix(Sequence& sequence) {
  if (!options_.prefix_caching) return;
  std::size_t most = sequence.tokens.size() - 1;  // positions that need not be computed
  if (sequence.scored.begin < sequence.scored.end) most = std::min(most, sequence.scored.begin);
  std::size_t first_whole = 0;  // from there on all that were found have their sliding blocks
  while ((sequence.stretches.size() + 1) * options_.block_size <= most) {
    const std::size_t number = sequence.stretches.size();
    const std::optional<std::uint32_t> stretch = blocks_.find(content_of(sequence, number));
    if (!stretch) break;
    sequence.stretches.push_back(*stretch);
    if (options_.tables.sliding > 0 && !blocks_.has_sliding_blocks(*stretch)) first_whole = number + 1;
    const std::size_t first_seen = first_seen_stretch((number + 1) * options_.block_size);
    if (first_whole > first_seen) continue;  // what the next query reads is not there
    sequence.num_shared = number + 1;
    sequence.num_unseen = first_seen;
  }
  std::vector<std::uint32_t> rest(sequence.stretches.begin() + static_cast<std::ptrdiff_t>(sequence.num_shared), sequence.stretches.end());
  blocks_.release(rest, rest.size());
  sequence.stretches.resize(sequence.num_shared);
  for (std::size_t i = sequence.num_unseen; i < sequence.num_shared; ++i) blocks_.see(sequence.stretches[i]);
}

void Scheduler::publish_stretches(Sequence& sequence) {
  if (!options_.prefix_caching) return;
  for (; (sequence.num_shared + 1) * options_.block_size <= sequence.num_computed; ++sequence.num_shared) {
    std::uint32_t& stretch = sequence.stretches[sequence.num_shared];
    stretch = blocks_.publish(stretch, content_of(sequence, sequence.num_shared));
  }
}

void Scheduler::give_back_unseen(Sequence& sequence) {
  const std::size_t first_seen = first_seen_stretch(sequence.num_computed);
  for (; sequence.num_unseen < first_seen; ++sequence.num_unseen) blocks_.unsee(sequence.stretches[sequence.num_unseen]);
}

void Scheduler::release(Sequence& sequence) {
  blocks_.release(sequence.stretches, sequence.num_unseen);
  sequence.num_unseen = 0;
  sequence.num_shared = 0;
}

void Scheduler::list_chunks(std::vector<ScheduledChunk>& chunks) const {
  for (const bool decodes : {true, false}) {
    for (const auto& [id, sequence] : running_) {
      if (sequence->scheduled == 0 || sequence->decodes() != decodes) continue;
      chunks.push_back({id, static_cast<std::uint32_t>(sequence->num_computed), sequence->scheduled,
                        sequence->scheduled == sequence->remaining(), decodes});
    }
  }
}

void Scheduler::advance() {
  if (!in_step_) throw std::logic_error("scheduler: no step was scheduled");
  for (auto& [id, sequence] : running_) {
    sequence->num_computed += sequence->scheduled;
    sequence->scheduled = 0;
    publish_stretches(*sequence);
    give_back_unseen(*sequence);
  }
  in_step_ = false;
}

void Scheduler::preempt(Queue::iterator victim) {
  Sequence& sequence = *victim->second;
  release(sequence);
  sequence.num_computed = 0;
  sequence.scheduled = 0;
  waiting_.insert(running_.extract(victim));
  ++num_preemptions_;
}

void Scheduler::preempt_for_test() {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (it->second->tokens.size() > it->second->admitted_length)
      return preempt(std::prev(it.base()));  // it has got on, so this can not go on for ever
  }
}

void Scheduler::append(SequenceId id, TokenId token) {
  const auto found = running_.find(id);
  if (found == running_.end() || in_step_ || found->second->remaining() != 0) {
    throw std::logic_error("scheduler: sequence " + std::to_string(id) + " does not wait for a token");
  }
  if (found->second->tokens.size() >= found->second->max_length) {
    throw std::logic_error("scheduler: sequence " + std::to_string(id) + " has all its " + std::to_string(found->second->max_length) +
                           " tokens");
  }
  found->second->tokens.push_back(token);
}

void Scheduler::remove(SequenceId id) {
  if (const auto running = running_.find(id); running != running_.end()) {
    release(*running->second);
    running_.erase(running);
  } else if (waiting_.erase(id) == 0) {
    throw std::logic_error("scheduler: there is no sequence " + std::to_string(id));
  }
}

void Scheduler::remove_all() {
  for (auto& [id, sequence] : running_) release(*sequence);
  running_.clear();
  waiting_.clear();
  in_step_ = false;
}

const Scheduler::Sequence& Scheduler::find(SequenceId id) const {
  for (const Queue* queue : {&running_, &waiting_}) {
    if (const auto found = queue->find(id); found != queue->end()) return *found->second;
  }
  throw std::logic_error("scheduler: there is no sequence " + std::to_string(id));
}

const std::vector<TokenId>& Scheduler::tokens(SequenceId id) const { return find(id).tokens; }
const std::vector<std::uint32_t>& Scheduler::stretches(SequenceId id) const { return find(id).stretches; }
ScoredPositions Scheduler::scored(SequenceId id) const { return find(id).scored; }

void Scheduler::append_block_tables(SequenceId id, std::size_t num_positions, std::vector<std::uint32_t>& to) const {
  const Sequence& sequence = find(id);
  const std::size_t count = blocks_.stretches_for(num_positions);
  for (std::size_t table = 0; table < options_.tables.all(); ++table) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(blocks_.block_of(sequence.stretches[i], table));
  }
}

}  // namespace lockstep::engine
