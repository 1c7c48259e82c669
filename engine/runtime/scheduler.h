#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/runtime/kv_cache.h"
#include "engine/runtime/request.h"

namespace lockstep::engine {

/// Numbers sequences in order of arrival: a smaller one has the older claim.
using SequenceId = std::uint64_t;

struct SchedulerOptions {
  std::size_t max_num_seqs = 32;             // sequences that hold blocks at a time
  std::size_t max_num_batched_tokens = 512;  // tokens of one step
  std::size_t prefill_chunk = 0;             // tokens that one sequence may prefill in one step; 0: as many as the step has room for
  std::size_t num_blocks = 0;                // of the KV cache, in all tables
  std::size_t block_size = 16;               // tokens of a block
  std::size_t max_logit_rows = 0;            // of one step; 0: no limit, else at least max_num_seqs where there is room for so many
  BlockTables tables;                        // of a sequence
  std::size_t window = 0;                    // how far back the layers of the sliding tables see; 0: as far as the others
  bool prefix_caching = false;               // blocks outlive their sequences, for others that begin with the same tokens
  std::size_t preempt_every = 0;  // test aid: every so many steps the youngest sequence with a token of its own is sent back; 0: never
};

/// Positions whose logits are wanted though they are not the last: those that score a prompt. None if begin == end.
struct ScoredPositions {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// One piece of work of a step: compute these positions of a sequence.
struct ScheduledChunk {
  SequenceId sequence = 0;
  std::uint32_t first_position = 0;
  std::uint32_t num_tokens = 0;
  bool reaches_end = false;  // the last known token is among them: the next one can be sampled
  bool is_decode = false;    // one new token after a whole prefill; else (part of) a prompt, or of what is recomputed
};

/// Decides what each step computes. Continuous batching with chunked prefill: decodes first, oldest first, then prompts with what is left
/// of the step's tokens.
///
/// A sequence is admitted, first come, first served, when the blocks of all its known tokens are free, so a prefill never stalls half way;
/// a decode that finds no free block sends the youngest running sequence back (its tokens are kept and computed again). The oldest is never
/// sent back for another, and what can never fit is refused, so there is always progress. The answers do not depend on any of this, which
/// is the numeric contract's doing.
///
/// With prefix caching a sequence starts behind the whole stretches of its beginning that are in the cache already. At least its last token
/// is computed, since the next one is sampled from that, and so are all from its first scored position on.
///
/// With a window, blocks of the sliding tables that no query can see any more are given back. Such an entry of a block table names some
/// block that is not read. A known beginning then has to have the sliding blocks that its next query reads; where all layers slide there is
/// nothing that would be kept of the positions before, and prefix caching is off.
///
/// Host logic only. Use: add() at any time; schedule(), compute, advance(); then append() or remove() for each chunk that reached the end.
class Scheduler {
 public:
  /// @throws std::invalid_argument that names the option.
  explicit Scheduler(const SchedulerOptions& options);

  /// Takes in a sequence that will never have more than `max_length` tokens, the given ones included.
  /// @param prefix_group only sequences of one group share blocks (see StretchContent)
  /// @throws std::invalid_argument if it has no token, or if that many tokens can never be computed with this cache.
  SequenceId add(std::vector<TokenId> tokens, std::size_t max_length, std::uint64_t prefix_group = 0, ScoredPositions scored = {});

  /// Fills `chunks` with the next step's work, in row order. Empty only if there is no sequence.
  /// @throws std::logic_error if the previous step was not advanced.
  void schedule(std::vector<ScheduledChunk>& chunks);
  /// The scheduled chunks have been computed.
  void advance();

  /// The next token of a sequence whose chunk reached the end.
  void append(SequenceId sequence, TokenId token);
  /// Ends a sequence, running or waiting, and frees its blocks.
  void remove(SequenceId sequence);
  void remove_all();
  /// No later sequence finds what is in the cache now. @pre there is no sequence
  void forget_prefixes() { blocks_.forget_kept(); }

  const std::vector<TokenId>& tokens(SequenceId sequence) const;
  /// What the sequence holds, see BlockAllocator.
  const std::vector<std::uint32_t>& stretches(SequenceId sequence) const;
  /// Appends the block tables of the first `num_positions` positions, see device::StepBatch::block_tables.
  void append_block_tables(SequenceId sequence, std::size_t num_positions, std::vector<std::uint32_t>& to) const;
  ScoredPositions scored(SequenceId sequence) const;

  std::size_t num_waiting() const { return waiting_.size(); }
  std::size_t num_running() const { return running_.size(); }
  std::size_t num_free_blocks() const { return blocks_.num_free(); }
  std::uint64_t num_preemptions() const { return num_preemptions_; }
  /// Tokens that were not computed because they stood in the cache.
  std::uint64_t num_cached_tokens() const { return num_cached_tokens_; }
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::size_t max_length = 0;
    std::uint64_t prefix_group = 0;
    ScoredPositions scored;
    std::size_t num_computed = 0;     // positions in the cache
    std::size_t admitted_length = 0;  // tokens when it was last admitted
    std::size_t prefill_length = 0;   // positions below it are prefill; one at a time after it
    std::uint32_t scheduled = 0;      // tokens of the step in progress
    std::vector<std::uint32_t> stretches;
    std::size_t num_unseen = 0;  // the first ones, which the sliding layers do not see any more
    std::size_t num_shared = 0;  // the first ones, whose content is known to the allocator
    std::size_t remaining() const { return tokens.size() - num_computed; }
    bool decodes() const { return num_computed >= prefill_length; }
    std::size_t logit_rows(std::size_t count) const;
  };
  using Queue = std::map<SequenceId, std::unique_ptr<Sequence>>;

  const Sequence& find(SequenceId sequence) const;
  StretchContent content_of(const Sequence& sequence, std::size_t stretch) const;
  std::size_t first_seen_stretch(std::size_t num_computed) const;
  void find_prefix(Sequence& sequence);
  void publish_stretches(Sequence& sequence);
  void give_back_unseen(Sequence& sequence);
  void release(Sequence& sequence);
  void preempt(Queue::iterator victim);
  void preempt_for_test();
  struct Budget {  // what a step still has room for
    std::size_t tokens = 0;
    std::size_t logit_rows = 0;
  };
  void schedule_decodes(Budget& budget);
  void schedule_prefills(Budget& budget);
  void admit(Budget& budget);
  void schedule_prefill(Sequence& sequence, Budget& budget) const;
  void list_chunks(std::vector<ScheduledChunk>& chunks) const;

  SchedulerOptions options_;
  BlockAllocator blocks_;
  Queue waiting_;
  Queue running_;
  SequenceId next_id_ = 1;
  std::uint64_t num_steps_ = 0;
  std::uint64_t num_preemptions_ = 0;
  std::uint64_t num_cached_tokens_ = 0;
  bool in_step_ = false;
};

}  // namespace lockstep::engine
