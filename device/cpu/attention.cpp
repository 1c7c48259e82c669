#include "device/cpu/attention.h"

#include <algorithm>

#include "device/cpu/int8_matrix.h"
#include "device/cpu/packing.h"

namespace lockstep::device::cpu {
namespace {

/// The row of a table that holds the angles of the one token that a sequence decodes.
std::size_t angles_of(const RotaryTable& table, const StepBatch::Sequence& sequence) {
  return table.by_token ? sequence.first_token : sequence.first_position;
}

}  // namespace

AttentionRunner::AttentionRunner(ThreadPool& pool, const Kernels& kernels)
    : pool_(pool), num_threads_(pool.size()), kernels_(kernels), first_piece_(pool.size() + 1), scratch_(pool.size()) {}

void AttentionRunner::plan(const StepBatch& batch, const AttentionSpec& spec, bool by_shares) {
  if (batch_ == &batch && num_heads_ == spec.num_heads && num_kv_heads_ == spec.num_kv_heads && head_dim_ == spec.head_dim &&
      by_shares_ == by_shares && window_ == spec.window && kv_head_of_ == spec.kv_head_of) {
    return;
  }
  batch_ = &batch;
  num_heads_ = spec.num_heads;
  num_kv_heads_ = spec.num_kv_heads;
  head_dim_ = spec.head_dim;
  by_shares_ = by_shares;
  window_ = spec.window;
  kv_head_of_ = spec.kv_head_of;
  state_floats_ = (head_dim_ + kLanes - 1) / kLanes * kLanes + kStateExtra;
  decode_ = std::all_of(batch.sequences.begin(), batch.sequences.end(), [](const auto& sequence) { return sequence.num_tokens == 1; });
  list_items(spec);
  find_owners(by_shares);
  reserve();
  pieces_.clear();
  num_cut_ = 0;
  if (decode_ && owners_divide_heads()) {
    share_out_heads();
  } else if (decode_) {
    share_out_spans();
  } else {
    for (std::uint32_t i = 0; i < items_.size(); ++i) pieces_.push_back({i, items_[i].first_span, items_[i].end_span});
  }
  // States, in decode the rotated queries of an item and its key, and what the kernel needs.
  const std::size_t floats =
      kQueryBlock * state_floats_ + (kQueryBlock + 1) * (state_floats_ + kLanes) + kernels_.attend_scratch_floats(head_dim_);
  for (auto& scratch : scratch_) scratch.resize(floats);
}

/// At most one item is cut at each border between threads.
void AttentionRunner::reserve() {
  std::size_t most_heads = 0;
  for (const auto& heads : heads_of_) most_heads = std::max(most_heads, heads.size());
  const std::size_t items = num_kv_heads_ * (limits_.max_sequences + limits_.max_tokens * most_heads / kQueryBlock);
  items_.reserve(items);
  pieces_.reserve(items + num_threads_);
  const std::size_t spans = (limits_.max_positions + kSpan - 1) / kSpan;
  const std::size_t states = (num_threads_ - 1) * std::min(most_heads, kQueryBlock) * spans * state_floats_;
  if (partial_states_.size() < states) partial_states_.resize(states);
}

void AttentionRunner::list_items(const AttentionSpec& spec) {
  heads_of_.resize(spec.num_kv_heads);
  for (auto& heads : heads_of_) heads.clear();
  for (std::uint32_t head = 0; head < spec.num_heads; ++head) heads_of_.at(spec.kv_head_of.at(head)).push_back(head);
  items_.clear();
  kv_head_is_split_ = false;
  for (const StepBatch::Sequence& sequence : batch_->sequences) {
    for (std::uint32_t kv_head = 0; kv_head < heads_of_.size(); ++kv_head) {
      const auto heads = static_cast<std::uint32_t>(heads_of_[kv_head].size());
      const std::uint32_t queries = sequence.num_tokens * heads;
      kv_head_is_split_ = kv_head_is_split_ || heads == 0 || heads > kQueryBlock;
      for (std::uint32_t first = 0; first < queries; first += kQueryBlock) {
        const std::uint32_t count = std::min<std::uint32_t>(kQueryBlock, queries - first);
        const std::uint32_t low = sequence.first_position + first / heads, high = sequence.first_position + (first + count - 1) / heads;
        const std::uint32_t begin = spec.window != 0 && low + 1 > spec.window ? low + 1 - spec.window : 0;
        const auto first_span = static_cast<std::uint32_t>(begin / kSpan), end_span = static_cast<std::uint32_t>(high / kSpan + 1);
        items_.push_back({&sequence, kv_head, first, count, first_span, end_span, 0, 1, kWhole, 0});
      }
    }
  }
}

void AttentionRunner::find_owners(bool by_shares) {
  owner_of_.assign(num_kv_heads_, kNobody);
  if (!by_shares) return;
  const PackedShape queries{.rows = num_heads_ * head_dim_, .shares = num_threads_};
  const PackedShape keys{.rows = num_kv_heads_ * head_dim_, .shares = num_threads_};
  const auto has = [this](const PackedShape& shape, std::size_t thread, std::size_t first_head, std::size_t end_head) {
    const std::size_t begin = shape.share_begin(thread) * kLanes, end = shape.share_begin(thread + 1) * kLanes;
    return begin <= first_head * head_dim_ && end_head * head_dim_ <= end;
  };
  for (std::uint32_t thread = 0; thread < num_threads_; ++thread) {
    for (std::size_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const std::vector<std::uint32_t>& heads = heads_of_[kv_head];  // ascending
      if (heads.empty() || !has(keys, thread, kv_head, kv_head + 1)) continue;
      if (has(queries, thread, heads.front(), std::size_t{heads.back()} + 1)) owner_of_[kv_head] = thread;
    }
  }
}

/// Whether all threads own equally many KV heads, and together all.
bool AttentionRunner::owners_divide_heads() const {
  if (num_kv_heads_ % num_threads_ != 0) return false;
  for (std::size_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    if (owner_of_[kv_head] != kv_head / (num_kv_heads_ / num_threads_)) return false;
  }
  return true;
}

void AttentionRunner::share_out_heads() {
  for (std::size_t thread = 0; thread < num_threads_; ++thread) {
    first_piece_[thread] = pieces_.size();
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      const Item& item = items_[i];
      if (owner_of_[item.kv_head] == thread) pieces_.push_back({i, item.first_span, item.end_span});
    }
  }
  first_piece_[num_threads_] = pieces_.size();
}

/// Thread t has the spans [t, t + 1) / threads of all spans of the step, items one behind the other.
void AttentionRunner::share_out_spans() {
  std::size_t all_spans = 0, begin = 0, states = 0, thread = 0;
  for (const Item& item : items_) all_spans += item.end_span - item.first_span;
  const auto first_of = [&](std::size_t t) { return all_spans * t / num_threads_; };
  first_piece_[0] = 0;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const std::size_t spans = item.end_span - item.first_span, end = begin + spans;
    item.parts = 0;
    for (std::size_t at = begin; at < end;) {
      while (thread + 1 < num_threads_ && at >= first_of(thread + 1)) first_piece_[++thread] = pieces_.size();
      const std::size_t to = thread + 1 < num_threads_ ? std::min(end, first_of(thread + 1)) : end;
      pieces_.push_back(
          {i, static_cast<std::uint32_t>(item.first_span + (at - begin)), static_cast<std::uint32_t>(item.first_span + (to - begin))});
      if (at == begin) item.merged_spans = static_cast<std::uint32_t>(to - at);
      ++item.parts;
      at = to;
    }
    if (item.parts > 1) {
      item.cut = num_cut_++;
      item.states = states;
      states += item.count * spans * state_floats_;
    }
    begin = end;
  }
  while (thread < num_threads_) first_piece_[++thread] = pieces_.size();
  if (partial_states_.size() < states) partial_states_.resize(states);
}

/// Decode: one counter for each cut item, of its parts that are done. Prefill: one, the next piece.
std::size_t AttentionRunner::begin_call() { return counters_.take(decode_ ? num_cut_ : 1); }

KeysPlace AttentionRunner::keys_of(const AttentionCall& call, const Item& item) const {
  const std::size_t table = StepBatch::first_entry(*item.sequence, call.block_table, call.cache.block_size);
  return {batch_->block_tables.data() + table, item.kv_head, item.sequence->first_position + item.sequence->num_tokens - 1};
}

QueryBlock AttentionRunner::queries_of(const AttentionCall& call, const Item& item) const {
  const std::vector<std::uint32_t>& heads = heads_of_[item.kv_head];
  QueryBlock block;
  block.count = item.count;
  for (std::size_t i = 0; i < item.count; ++i) {
    const std::size_t token = (item.first_query + i) / heads.size(), head = heads[(item.first_query + i) % heads.size()];
    block.queries[i] = call.qkv + (item.sequence->first_token + token) * call.qkv_columns + head * head_dim_;
    block.positions[i] = item.sequence->first_position + static_cast<std::uint32_t>(token);
    if (call.slopes != nullptr) block.slopes[i] = call.slopes[head];
  }
  block.keys = keys_of(call, item);
  block.scale = call.scale;
  block.window = call.window;
  block.soft_cap = call.soft_cap;
  block.sloped = call.slopes != nullptr;
  return block;
}

void AttentionRunner::rotate_queries(const AttentionCall& call, const Item& item, QueryBlock& block, float* rotated) const {
  const std::size_t half = call.table->rotary_dim / 2, angles = angles_of(*call.table, *item.sequence) * half;
  for (std::size_t i = 0; i < item.count; ++i) {
    float* to = rotated + i * (state_floats_ + kLanes);
    kernels_.rotate(block.queries[i], head_dim_, call.table->cosines.data() + angles, call.table->sines.data() + angles, half, to);
    block.queries[i] = to;
  }
}

void AttentionRunner::append_newest(const AttentionCall& call, const Item& item, float* rotated) const {
  const std::size_t position = item.sequence->first_position;
  const float* row = call.qkv + item.sequence->first_token * call.qkv_columns;
  const float* key = row + (num_heads_ + item.kv_head) * head_dim_;
  const float* value = row + (num_heads_ + num_kv_heads_ + item.kv_head) * head_dim_;
  if (call.table != nullptr) {
    const std::size_t half = call.table->rotary_dim / 2, angles = angles_of(*call.table, *item.sequence) * half;
    kernels_.rotate(key, head_dim_, call.table->cosines.data() + angles, call.table->sines.data() + angles, half, rotated);
    key = rotated;
  }
  const std::size_t table = StepBatch::first_entry(*item.sequence, call.block_table, call.cache.block_size);
  const std::uint32_t block = batch_->block_tables[table + position / call.cache.block_size];
  kernels_.append(call.cache, block, item.kv_head, position % call.cache.block_size, key, value);
}

void AttentionRunner::run(const AttentionCall& call, std::size_t thread) noexcept {
  float* scratch = scratch_[thread].data();
  if (decode_) return run_decode(call, thread, scratch);
  std::atomic<std::uint32_t>& next = counters_[call.counters];
  // From the end: the last queries of a prompt see the most keys.
  for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < pieces_.size(); i = next.fetch_add(1, std::memory_order_relaxed)) {
    run_piece(call, pieces_[pieces_.size() - 1 - i], nullptr, scratch);
  }
}

/// First what the thread computed itself: by the time that it needs the others, they have arrived.
void AttentionRunner::run_decode(const AttentionCall& call, std::size_t thread, float* scratch) noexcept {
  const std::span<const Piece> pieces(pieces_.data() + first_piece_[thread], first_piece_[thread + 1] - first_piece_[thread]);
  const auto is_own = [&](const Piece& piece) { return owner_of_[items_[piece.item].kv_head] == thread; };
  const auto run_those = [&](bool own) {
    const Piece* piece = nullptr;
    for (const Piece& next : pieces) {
      if (is_own(next) != own) continue;
      if (piece != nullptr) run_piece(call, *piece, &next, scratch);
      piece = &next;
    }
    if (piece != nullptr) run_piece(call, *piece, nullptr, scratch);
  };
  run_those(true);
  if (std::all_of(pieces.begin(), pieces.end(), is_own)) return;
  if (call.awaits) pool_.await_others(thread);
  run_those(false);
}

void AttentionRunner::run_piece(const AttentionCall& call, const Piece& piece, const Piece* next, float* scratch) noexcept {
  const Item& item = items_[piece.item];
  QueryBlock block = queries_of(call, item);
  if (next != nullptr) {
    block.next_keys = keys_of(call, items_[next->item]);
    block.next_span = next->first_span;
  }
  float* rotated = scratch + kQueryBlock * state_floats_;
  if (call.appends) {
    if (call.table != nullptr) rotate_queries(call, item, block, rotated);
    // The newest key lies in the last span: no other thread reads there.
    if (piece.end_span == item.end_span) append_newest(call, item, rotated + kQueryBlock * (state_floats_ + kLanes));
  }
  float* scores = rotated + (kQueryBlock + 1) * (state_floats_ + kLanes);
  if (item.parts == 1) {
    kernels_.attend(call.cache, block, piece.first_span, piece.end_span, scratch, state_floats_, 0, scores);
    for (std::size_t query = 0; query < item.count; ++query) finish(call, item, query, scratch + query * state_floats_, scores);
    return;
  }
  const std::size_t query_stride = (item.end_span - item.first_span) * state_floats_;
  float* states = partial_states_.data() + item.states + (piece.first_span - item.first_span) * state_floats_;
  const bool first = piece.first_span == item.first_span;
  kernels_.attend(call.cache, block, piece.first_span, piece.end_span, states, query_stride, first ? 0 : state_floats_, scores);
  if (counters_[call.counters + item.cut].fetch_add(1, std::memory_order_acq_rel) + 1 == item.parts) merge_spans(call, item, scores);
}

void AttentionRunner::merge_spans(const AttentionCall& call, const Item& item, float* scratch) const {
  const std::size_t spans = item.end_span - item.first_span;
  for (std::size_t query = 0; query < item.count; ++query) {
    float* state = const_cast<float*>(partial_states_.data()) + item.states + query * spans * state_floats_;
    for (std::size_t span = item.merged_spans; span < spans; ++span) kernels_.merge_state(state, state + span * state_floats_, head_dim_);
    finish(call, item, query, state, scratch);
  }
}

void AttentionRunner::finish(const AttentionCall& call, const Item& item, std::size_t query, const float* state, float* row) const {
  const std::vector<std::uint32_t>& heads = heads_of_[item.kv_head];
  const std::size_t token = item.sequence->first_token + (item.first_query + query) / heads.size();
  const std::size_t head = heads[(item.first_query + query) % heads.size()];
  const float* sink = call.sinks == nullptr ? nullptr : call.sinks + head;
  if (call.floats != nullptr) return kernels_.finish_state(state, head_dim_, sink, call.floats + (token * num_heads_ + head) * head_dim_);
  kernels_.finish_state(state, head_dim_, sink, row);
  kernels_.quantise(row, head_dim_ / kBlock, int8_row(call.int8, token, head * head_dim_ / kBlock));
}

void AttentionRunner::append_token(float* row, std::size_t angles, std::size_t num_heads, std::size_t num_kv_heads,
                                   const RotaryTable* table, const CacheView& cache, std::uint32_t block, std::size_t offset,
                                   float* scratch) const {
  const std::size_t half = table ? table->rotary_dim / 2 : 0, head_dim = cache.head_dim;
  const float* cosines = table ? table->cosines.data() + angles * half : nullptr;
  const float* sines = table ? table->sines.data() + angles * half : nullptr;
  for (std::size_t head = 0; table && head < num_heads; ++head) {
    kernels_.rotate(row + head * head_dim, head_dim, cosines, sines, half, row + head * head_dim);
  }
  for (std::size_t head = 0; head < num_kv_heads; ++head) {
    const float* key = row + (num_heads + head) * head_dim;
    const float* value = row + (num_heads + num_kv_heads + head) * head_dim;
    if (table) {
      kernels_.rotate(key, head_dim, cosines, sines, half, scratch);
      key = scratch;
    }
    kernels_.append(cache, block, head, offset, key, value);
  }
}

}  // namespace lockstep::device::cpu
