#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace lockstep::engine {

/// Hands out the blocks of the paged KV cache. It knows numbers only; the memory is the device's. Rank 0 decides for every rank, all of
/// which have as many blocks.
class BlockAllocator {
 public:
  /// @throws std::invalid_argument if one of them is 0 or a block number does not fit into 32 bits.
  BlockAllocator(std::size_t num_blocks, std::size_t block_size);

  std::size_t num_blocks() const { return in_use_.size(); }
  std::size_t num_free() const { return free_.size(); }
  std::size_t block_size() const { return block_size_; }
  std::size_t blocks_for(std::size_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  /// Extends `table` so that it covers `num_tokens` positions. False, and nothing is changed, if there are not enough free blocks.
  bool extend(std::vector<std::uint32_t>& table, std::size_t num_tokens);
  /// Takes back every block of `table` and empties it.
  /// @throws std::logic_error if a block is not in use.
  void release(std::vector<std::uint32_t>& table);

 private:
  std::size_t block_size_;
  std::vector<std::uint32_t> free_;  // the last one goes first
  std::vector<bool> in_use_;         // [num_blocks]
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
