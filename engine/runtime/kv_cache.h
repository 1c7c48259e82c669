#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "engine/runtime/kv_layout.h"

namespace lockstep::engine {

/// What the tokens of a stretch depend on, besides themselves: the stretches before it, and a number that sequences must agree on to share
/// (0, unless keys depend on more than the tokens before them).
struct StretchContent {
  std::uint64_t group = 0;
  std::optional<std::uint32_t> previous;  // a stretch that has a content itself; absent: there is none before
  std::span<const std::int32_t> tokens;   // as many as a block has
};

/// Hands out the blocks of the paged KV cache. It knows numbers only; the memory is the device's. Rank 0 decides for every rank, all of
/// which have as many blocks.
///
/// What sequences hold are stretches: so many positions as a block has, with a block in each block table. A stretch is held by one sequence
/// or more, or kept: nobody holds it, but what it contains is known, and it can be found and held again until its blocks are needed.
/// Contents are compared in full, token by token along the chain of stretches, and never by a hash alone.
///
/// A holder sees a stretch until its queries do not reach it any more in the layers that slide. When nobody sees it, the blocks of the
/// sliding tables are kept for those who may find it, or free where the content is not known; the stretch may lose them and be held on
/// without.
class BlockAllocator {
 public:
  /// @throws std::invalid_argument if one of them is 0 or a block number does not fit into 32 bits.
  BlockAllocator(std::size_t num_blocks, std::size_t block_size, const BlockTables& tables = {});

  std::size_t num_blocks() const { return num_blocks_; }
  /// Blocks that nobody holds: free or kept.
  std::size_t num_free() const { return free_.size() + num_kept_; }
  std::size_t num_kept() const { return num_kept_; }
  std::size_t block_size() const { return block_size_; }
  std::size_t stretches_for(std::size_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }
  std::size_t blocks_for(std::size_t num_tokens) const { return stretches_for(num_tokens) * tables_.all(); }

  /// Extends `stretches` so that they cover `num_tokens` positions; the caller holds and sees the new ones. False, and nothing is changed,
  /// if there are not enough blocks.
  bool extend(std::vector<std::uint32_t>& stretches, std::size_t num_tokens);
  /// Lets go of all, the last one first, and empties the list. The first `num_unseen` of them are not seen by the caller. What has a
  /// content is kept.
  /// @throws std::logic_error if one is not held.
  void release(std::vector<std::uint32_t>& stretches, std::size_t num_unseen = 0);

  /// A holder sees a stretch no longer, or it does so (again): @pre has_sliding_blocks(stretch).
  void unsee(std::uint32_t stretch);
  void see(std::uint32_t stretch);
  bool has_sliding_blocks(std::uint32_t stretch) const;
  /// The block of a stretch in a table; 0, some block, where the stretch has lost it.
  std::uint32_t block_of(std::uint32_t stretch, std::size_t table) const;

  /// The stretch with this content, which the caller then holds but does not see, if there is one.
  std::optional<std::uint32_t> find(const StretchContent& content);
  /// Says what a held stretch contains, now that it is computed. Returns the one to use from then on, held and seen as this one was: if
  /// there is one with that content already, that one, and `stretch` is let go.
  std::uint32_t publish(std::uint32_t stretch, const StretchContent& content, bool is_seen = true);
  /// From then on no content is known of what nobody holds: somebody else wrote to the cache.
  void forget_kept();

 private:
  /// Blocks that are kept: those of the sliding tables, or those of the others, of a stretch.
  struct Kept {
    std::uint32_t stretch = 0;
    bool sliding = false;
  };
  using KeptList = std::list<Kept>;
  struct Stretch {
    std::uint32_t holders = 0;
    std::uint32_t viewers = 0;  // of the holders
    std::uint64_t group = 0;
    std::optional<std::uint32_t> previous;
    std::vector<std::int32_t> tokens;               // empty: the content is not known
    KeptList::iterator place_whole, place_sliding;  // where they are kept
  };
  using Index = std::unordered_multimap<std::uint64_t, std::uint32_t>;
  static constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);

  static std::uint64_t hash_of(const StretchContent& content);
  std::optional<std::uint32_t> lookup(const StretchContent& content) const;
  std::span<std::uint32_t> blocks_of(std::uint32_t stretch, bool sliding);
  void hold(std::uint32_t stretch);
  void let_go(std::uint32_t stretch, bool is_seen);
  KeptList::iterator keep(std::uint32_t stretch, bool sliding);
  void take_back(KeptList::iterator kept);
  void free_blocks(std::uint32_t stretch, bool sliding);
  std::uint32_t take();
  std::uint32_t take_block();
  void forget(Kept kept);

  std::size_t num_blocks_, block_size_;
  BlockTables tables_;
  std::vector<Stretch> stretches_;
  std::vector<std::uint32_t> blocks_;          // [stretches, tables]; kNone: it has lost it
  std::vector<std::uint32_t> free_stretches_;  // without blocks; the last one goes first
  std::vector<std::uint32_t> free_;            // blocks; the last one goes first
  /// The first one goes first. Whoever holds a stretch holds those before it, and lets go of them after it, so none is forgotten while one
  /// that follows it is known. A stretch is seen no longer than it is held, so its sliding blocks go first.
  KeptList kept_;
  std::size_t num_kept_ = 0;  // blocks
  Index index_;               // by hash_of
};

/// How much KV cache a rank gets.
struct KvCacheSize {
  std::size_t num_blocks = 0;  // of all tables
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
KvCacheSize size_kv_cache(std::uint64_t budget_bytes, const device::KvCacheSpec& spec, std::size_t max_model_len, bool length_is_required,
                          std::size_t max_num_seqs);

}  // namespace lockstep::engine
