#include "engine/runtime/kv_cache.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::engine {

BlockAllocator::BlockAllocator(std::size_t num_blocks, std::size_t block_size, const BlockTables& tables)
    : num_blocks_(num_blocks), block_size_(block_size), tables_(tables) {
  if (num_blocks == 0 || block_size == 0 || tables.all() == 0 || num_blocks > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("KV cache: " + std::to_string(num_blocks) + " blocks of " + std::to_string(block_size) + " tokens in " +
                                std::to_string(tables.all()) + " tables");
  }
  free_.resize(num_blocks);
  for (std::size_t i = 0; i < num_blocks; ++i) free_[i] = static_cast<std::uint32_t>(num_blocks - 1 - i);
  const std::size_t most = num_blocks / std::max<std::size_t>(1, tables.whole);  // but where all layers slide
  stretches_.reserve(most);
  blocks_.reserve(most * tables.all());
  free_stretches_.reserve(most);
}

bool BlockAllocator::extend(std::vector<std::uint32_t>& stretches, std::size_t num_tokens) {
  const std::size_t wanted = stretches_for(num_tokens);
  if (wanted <= stretches.size()) return true;
  if ((wanted - stretches.size()) * tables_.all() > num_free()) return false;
  while (stretches.size() < wanted) stretches.push_back(take());
  return true;
}

void BlockAllocator::release(std::vector<std::uint32_t>& stretches, std::size_t num_unseen) {
  for (; !stretches.empty(); stretches.pop_back()) let_go(stretches.back(), stretches.size() > num_unseen);
}

void BlockAllocator::unsee(std::uint32_t number) {
  Stretch& stretch = stretches_[number];
  if (--stretch.viewers > 0 || !has_sliding_blocks(number)) return;
  if (stretch.tokens.empty()) {
    free_blocks(number, true);
  } else {
    stretch.place_sliding = keep(number, true);
  }
}

void BlockAllocator::see(std::uint32_t number) {
  Stretch& stretch = stretches_[number];
  if (stretch.viewers++ == 0 && tables_.sliding > 0) take_back(stretch.place_sliding);
}

bool BlockAllocator::has_sliding_blocks(std::uint32_t stretch) const {
  return tables_.sliding > 0 && blocks_[stretch * tables_.all() + tables_.whole] != kNone;
}

std::uint32_t BlockAllocator::block_of(std::uint32_t stretch, std::size_t table) const {
  const std::uint32_t block = blocks_[stretch * tables_.all() + table];
  return block == kNone ? 0 : block;
}

std::optional<std::uint32_t> BlockAllocator::find(const StretchContent& content) {
  const std::optional<std::uint32_t> found = lookup(content);
  if (found) hold(*found);
  return found;
}

std::uint32_t BlockAllocator::publish(std::uint32_t number, const StretchContent& content, bool is_seen) {
  if (const std::optional<std::uint32_t> found = find(content)) {
    if (is_seen && (tables_.sliding == 0 || has_sliding_blocks(*found))) {
      see(*found);
    } else if (is_seen) {  // it has lost its sliding blocks: those of this one take their place
      std::ranges::swap_ranges(blocks_of(*found, true), blocks_of(number, true));
      ++stretches_[*found].viewers;
    }
    let_go(number, is_seen);
    return *found;
  }
  Stretch& known = stretches_[number];
  known.group = content.group;
  known.previous = content.previous;
  known.tokens.assign(content.tokens.begin(), content.tokens.end());
  index_.emplace(hash_of(content), number);
  return number;
}

void BlockAllocator::forget_kept() {
  while (!kept_.empty()) forget(kept_.front());
}

std::uint64_t BlockAllocator::hash_of(const StretchContent& content) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a number at a time: a collision costs a comparison, nothing else
  const auto mix = [&hash](std::uint64_t number) { hash = (hash ^ number) * 0x100000001b3u; };
  mix(content.group);
  mix(content.previous ? std::uint64_t{*content.previous} + 1 : 0);
  for (const std::int32_t token : content.tokens) mix(static_cast<std::uint32_t>(token));
  return hash;
}

std::optional<std::uint32_t> BlockAllocator::lookup(const StretchContent& content) const {
  const auto [first, last] = index_.equal_range(hash_of(content));
  for (auto candidate = first; candidate != last; ++candidate) {
    const Stretch& stretch = stretches_[candidate->second];
    if (stretch.group == content.group && stretch.previous == content.previous &&
        std::equal(stretch.tokens.begin(), stretch.tokens.end(), content.tokens.begin(), content.tokens.end())) {
      return candidate->second;
    }
  }
  return std::nullopt;
}

std::span<std::uint32_t> BlockAllocator::blocks_of(std::uint32_t stretch, bool sliding) {
  const std::span<std::uint32_t> all = std::span(blocks_).subspan(stretch * tables_.all(), tables_.all());
  return sliding ? all.last(tables_.sliding) : all.first(tables_.whole);
}

void BlockAllocator::hold(std::uint32_t number) {
  Stretch& stretch = stretches_[number];
  if (stretch.holders++ == 0) take_back(stretch.place_whole);
}

void BlockAllocator::let_go(std::uint32_t number, bool is_seen) {
  if (number >= stretches_.size() || stretches_[number].holders == 0)
    throw std::logic_error("KV cache: stretch " + std::to_string(number) + " is given back, but not in use");
  if (is_seen) unsee(number);
  Stretch& stretch = stretches_[number];
  if (--stretch.holders > 0) return;
  if (stretch.tokens.empty()) {
    free_blocks(number, false);
    free_stretches_.push_back(number);
  } else {
    stretch.place_whole = keep(number, false);
  }
}

BlockAllocator::KeptList::iterator BlockAllocator::keep(std::uint32_t stretch, bool sliding) {
  num_kept_ += sliding ? tables_.sliding : tables_.whole;
  return kept_.insert(kept_.end(), {stretch, sliding});
}

void BlockAllocator::take_back(KeptList::iterator kept) {
  num_kept_ -= kept->sliding ? tables_.sliding : tables_.whole;
  kept_.erase(kept);
}

void BlockAllocator::free_blocks(std::uint32_t stretch, bool sliding) {
  for (std::uint32_t& block : blocks_of(stretch, sliding)) free_.push_back(std::exchange(block, kNone));
}

std::uint32_t BlockAllocator::take() {
  if (free_stretches_.empty()) {
    free_stretches_.push_back(static_cast<std::uint32_t>(stretches_.size()));
    stretches_.emplace_back();
    blocks_.resize(stretches_.size() * tables_.all(), kNone);
  }
  const std::uint32_t number = free_stretches_.back();
  free_stretches_.pop_back();
  stretches_[number].holders = stretches_[number].viewers = 1;
  for (const bool sliding : {false, true}) {
    for (std::uint32_t& block : blocks_of(number, sliding)) block = take_block();
  }
  return number;
}

std::uint32_t BlockAllocator::take_block() {
  if (free_.empty()) forget(kept_.front());
  const std::uint32_t block = free_.back();
  free_.pop_back();
  return block;
}

void BlockAllocator::forget(Kept kept) {
  Stretch& stretch = stretches_[kept.stretch];
  take_back(kept.sliding ? stretch.place_sliding : stretch.place_whole);
  free_blocks(kept.stretch, kept.sliding);
  if (kept.sliding) return;
  const auto [first, last] = index_.equal_range(hash_of({stretch.group, stretch.previous, stretch.tokens}));
  index_.erase(std::find_if(first, last, [&kept](const Index::value_type& entry) { return entry.second == kept.stretch; }));
  stretch.tokens.clear();
  free_stretches_.push_back(kept.stretch);
}

KvCacheSize size_kv_cache(std::uint64_t budget_bytes, const device::KvCacheSpec& spec, std::size_t max_model_len, bool length_is_required,
                          std::size_t max_num_seqs) {
  if (spec.block_size == 0 || max_model_len == 0 || max_num_seqs == 0) {
    throw std::runtime_error("KV cache: block size " + std::to_string(spec.block_size) + ", maximum length " +
                             std::to_string(max_model_len) + " and " + std::to_string(max_num_seqs) + " sequences must be at least 1");
  }
  constexpr std::uint64_t kMostBlocks = std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t tables = spec.num_tables();
  const std::uint64_t bytes_per_stretch = spec.bytes_per_block() * tables;
  const std::uint64_t affordable = bytes_per_stretch == 0 ? kMostBlocks : budget_bytes / bytes_per_stretch;
  const std::uint64_t needed = (std::uint64_t{max_model_len} + spec.block_size - 1) / spec.block_size;  // by one sequence
  if (affordable == 0 || (length_is_required && affordable < needed)) {
    const std::string tokens = std::to_string(affordable * spec.block_size);
    throw std::runtime_error("KV cache: a token takes " + std::to_string(spec.bytes_per_token()) + " bytes on this rank, a block of " +
                             std::to_string(spec.block_size) + " tokens " + std::to_string(bytes_per_stretch) + " bytes; " +
                             std::to_string(budget_bytes) + " bytes hold " + tokens + " tokens, but one sequence of " +
                             std::to_string(max_model_len) + " tokens needs " + std::to_string(needed * bytes_per_stretch) +
                             " bytes. The longest workable length is " + tokens + " tokens");
  }
  const std::uint64_t useful = std::min(needed, kMostBlocks / max_num_seqs) * max_num_seqs;
  const std::uint64_t stretches = std::min({affordable, std::max(useful, needed), kMostBlocks / tables});
  KvCacheSize size;
  size.num_blocks = static_cast<std::size_t>(stretches * tables);
  size.bytes_per_token = spec.bytes_per_token();
  size.max_model_len = static_cast<std::size_t>(std::min<std::uint64_t>(max_model_len, stretches * spec.block_size));
  return size;
}

}  // namespace lockstep::engine
