#include "engine/runtime/kv_cache.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace lockstep::engine {

BlockAllocator::BlockAllocator(std::size_t num_blocks, std::size_t block_size) : block_size_(block_size) {
  if (num_blocks == 0 || block_size == 0 || num_blocks > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("KV cache: " + std::to_string(num_blocks) + " blocks of " + std::to_string(block_size) + " tokens");
  }
  blocks_.resize(num_blocks);
  free_.resize(num_blocks);
  for (std::size_t i = 0; i < num_blocks; ++i) free_[i] = static_cast<std::uint32_t>(num_blocks - 1 - i);
}

bool BlockAllocator::extend(std::vector<std::uint32_t>& table, std::size_t num_tokens) {
  const std::size_t wanted = blocks_for(num_tokens);
  if (wanted <= table.size()) return true;
  if (wanted - table.size() > num_free()) return false;
  while (table.size() < wanted) table.push_back(take());
  return true;
}

void BlockAllocator::release(std::vector<std::uint32_t>& table) {
  for (; !table.empty(); table.pop_back()) let_go(table.back());
}

void BlockAllocator::release(std::uint32_t block) { let_go(block); }

std::optional<std::uint32_t> BlockAllocator::find(const BlockContent& content) {
  const std::optional<std::uint32_t> found = lookup(content);
  if (found) hold(*found);
  return found;
}

std::uint32_t BlockAllocator::publish(std::uint32_t block, const BlockContent& content) {
  if (const std::optional<std::uint32_t> found = find(content)) {
    let_go(block);
    return *found;
  }
  Block& known = blocks_[block];
  known.group = content.group;
  known.previous = content.previous;
  known.tokens.assign(content.tokens.begin(), content.tokens.end());
  index_.emplace(hash_of(content), block);
  return block;
}

void BlockAllocator::forget_kept() {
  while (!kept_.empty()) forget(kept_.front());
}

std::uint64_t BlockAllocator::hash_of(const BlockContent& content) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a number at a time: a collision costs a comparison, nothing else
  const auto mix = [&hash](std::uint64_t number) { hash = (hash ^ number) * 0x100000001b3u; };
  mix(content.group);
  mix(content.previous ? std::uint64_t{*content.previous} + 1 : 0);
  for (const std::int32_t token : content.tokens) mix(static_cast<std::uint32_t>(token));
  return hash;
}

std::optional<std::uint32_t> BlockAllocator::lookup(const BlockContent& content) const {
  const auto [first, last] = index_.equal_range(hash_of(content));
  for (auto candidate = first; candidate != last; ++candidate) {
    const Block& block = blocks_[candidate->second];
    if (block.group == content.group && block.previous == content.previous &&
        std::equal(block.tokens.begin(), block.tokens.end(), content.tokens.begin(), content.tokens.end())) {
      return candidate->second;
    }
  }
  return std::nullopt;
}

void BlockAllocator::hold(std::uint32_t number) {
  Block& block = blocks_[number];
  if (block.holders++ == 0) kept_.erase(block.place_kept);
}

void BlockAllocator::let_go(std::uint32_t number) {
  if (number >= blocks_.size() || blocks_[number].holders == 0)
    throw std::logic_error("KV cache: block " + std::to_string(number) + " is given back, but not in use");
  Block& block = blocks_[number];
  if (--block.holders > 0) return;
  if (block.tokens.empty()) {
    free_.push_back(number);
  } else {
    block.place_kept = kept_.insert(kept_.end(), number);
  }
}

std::uint32_t BlockAllocator::take() {
  if (free_.empty()) forget(kept_.front());
  const std::uint32_t block = free_.back();
  free_.pop_back();
  blocks_[block].holders = 1;
  return block;
}

void BlockAllocator::forget(std::uint32_t number) {
  Block& block = blocks_[number];
  const auto [first, last] = index_.equal_range(hash_of({block.group, block.previous, block.tokens}));
  index_.erase(std::find_if(first, last, [number](const Index::value_type& entry) { return entry.second == number; }));
  kept_.erase(block.place_kept);
  block.tokens.clear();
  free_.push_back(number);
}

KvCacheSize size_kv_cache(std::uint64_t budget_bytes, device::KvCacheSpec spec, std::size_t max_model_len, bool length_is_required,
                          std::size_t max_num_seqs) {
  if (spec.block_size == 0 || max_model_len == 0 || max_num_seqs == 0) {
    throw std::runtime_error("KV cache: block size " + std::to_string(spec.block_size) + ", maximum length " +
                             std::to_string(max_model_len) + " and " + std::to_string(max_num_seqs) + " sequences must be at least 1");
  }
  const std::uint64_t bytes_per_block = spec.bytes_per_block();
  const std::uint64_t affordable = bytes_per_block == 0 ? std::numeric_limits<std::uint32_t>::max() : budget_bytes / bytes_per_block;
  const std::uint64_t blocks_per_sequence = (std::uint64_t{max_model_len} + spec.block_size - 1) / spec.block_size;
  const std::uint64_t bytes_per_token = bytes_per_block / spec.block_size;
  if (affordable == 0 || (length_is_required && affordable < blocks_per_sequence)) {
    const std::string needed = std::to_string(blocks_per_sequence * bytes_per_block);
    throw std::runtime_error("KV cache: a token takes " + std::to_string(bytes_per_token) + " bytes on this rank, a block of " +
                             std::to_string(spec.block_size) + " tokens " + std::to_string(bytes_per_block) + " bytes; " +
                             std::to_string(budget_bytes) + " bytes hold " + std::to_string(affordable * spec.block_size) +
                             " tokens, but one sequence of " + std::to_string(max_model_len) + " tokens needs " + needed +
                             " bytes. The longest workable length is " + std::to_string(affordable * spec.block_size) + " tokens");
  }
  const std::uint64_t useful =
      std::min<std::uint64_t>(blocks_per_sequence, std::numeric_limits<std::uint32_t>::max() / max_num_seqs) * max_num_seqs;
  KvCacheSize size;
  size.num_blocks = static_cast<std::size_t>(
      std::min({affordable, std::max(useful, blocks_per_sequence), std::uint64_t{std::numeric_limits<std::uint32_t>::max()}}));
  size.bytes_per_token = static_cast<std::size_t>(bytes_per_token);
  size.max_model_len = static_cast<std::size_t>(std::min<std::uint64_t>(max_model_len, std::uint64_t{size.num_blocks} * spec.block_size));
  return size;
}

}  // namespace lockstep::engine
