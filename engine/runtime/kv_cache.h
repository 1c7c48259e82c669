#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace lockstep::engine {

/// What the tokens of a block depend on, besides themselves: the blocks before it, and a number that sequences must agree on to share
/// (0, unless keys depend on more than the tokens before them).
struct BlockContent {
  std::uint64_t group = 0;
  std::optional<std::uint32_t> previous;  // a block that has a content itself; absent: there is none before
  std::span<const std::int32_t> tokens;   // as many as a block has
};

/// Hands out the blocks of the paged KV cache. It knows numbers only; the memory is the device's. Rank 0 decides for every rank, all of
/// which have as many blocks.
///
/// A block is free, held by one sequence or more, or kept: nobody holds it, but what it contains is known, and it can be found and held
/// again until its room is needed. Contents are compared in full, token by token along the chain of blocks, and never by a hash alone.
class BlockAllocator {
 public:
  /// @throws std::invalid_argument if one of them is 0 or a block number does not fit into 32 bits.
  BlockAllocator(std::size_t num_blocks, std::size_t block_size);

  std::size_t num_blocks() const { return blocks_.size(); }
  /// Blocks that nobody holds: free or kept.
  std::size_t num_free() const { return free_.size() + kept_.size(); }
  std::size_t num_kept() const { return kept_.size(); }
  std::size_t block_size() const { return block_size_; }
  std::size_t blocks_for(std::size_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  /// Extends `table` so that it covers `num_tokens` positions. False, and nothing is changed, if there are not enough blocks.
  bool extend(std::vector<std::uint32_t>& table, std::size_t num_tokens);
  /// Lets go of every block of `table`, and empties it. A block with a content is kept.
  /// @throws std::logic_error if a block is not held.
  void release(std::vector<std::uint32_t>& table);
  /// Lets go of one block without a content.
  void release(std::uint32_t block);

  /// The block with this content, which the caller then holds, if there is one.
  std::optional<std::uint32_t> find(const BlockContent& content);
  /// Says what a held block contains, now that it is computed. Returns the block to use from then on: if there is one with that content
  /// already, that one, and `block` is let go.
  std::uint32_t publish(std::uint32_t block, const BlockContent& content);
  /// From then on no content of a block that nobody holds is known: somebody else wrote to the cache.
  void forget_kept();

 private:
  struct Block {
    std::uint32_t holders = 0;
    std::uint64_t group = 0;
    std::optional<std::uint32_t> previous;
    std::vector<std::int32_t> tokens;               // empty: the content is not known
    std::list<std::uint32_t>::iterator place_kept;  // where nobody holds it
  };
  using Index = std::unordered_multimap<std::uint64_t, std::uint32_t>;

  static std::uint64_t hash_of(const BlockContent& content);
  std::optional<std::uint32_t> lookup(const BlockContent& content) const;
  void hold(std::uint32_t block);
  void let_go(std::uint32_t block);
  std::uint32_t take();
  void forget(std::uint32_t block);

  std::size_t block_size_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;  // the last one goes first
  /// The first one goes first. Whoever holds a block holds those before it, and lets go of them after it, so no block is forgotten while
  /// one that follows it is known.
  std::list<std::uint32_t> kept_;
  Index index_;  // by hash_of
};

/// How much KV cache a rank gets.
struct KvCacheSize {
  std::size_t num_blocks = 0;
  std::size_t bytes_per_token = 0;
  std::size_t max_model_len = 0;  // tokens that one sequence may have
};

/// The cache that a budget pays for on this rank. `spec` says what a block is; its num_blocks is ignored. At most as many blocks as
/// max_num_seqs sequences of max_model_len tokens can use. All ranks of a group must then take the minimum of num_blocks, and of
/// max_model_len.
///
/// @param length_is_required  an answer must be possible at max_model_len: it was asked for. Otherwise it is only the model's own maximum,
/// and a length that fits
///   takes its place.
/// @throws std::runtime_error with the arithmetic (bytes a token, tokens that fit, longest workable length) if it does not fit.
KvCacheSize size_kv_cache(std::uint64_t budget_bytes, device::KvCacheSpec spec, std::size_t max_model_len, bool length_is_required,
                          std::size_t max_num_seqs);

}  // namespace lockstep::engine
