#include "device/cpu/attention.h"

#include <algorithm>

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kFewestSpans = 4;     // of a piece
constexpr std::size_t kPiecesOfThread = 4;  // to aim for, so that uneven ones even out

std::size_t state_floats_of(const CacheView& cache) { return (cache.head_dim + kLanes - 1) / kLanes * kLanes + kStateExtra; }

}  // namespace

void AttentionRunner::run(const float* qkv, std::size_t qkv_columns, const StepBatch& batch, const AttentionSpec& spec,
                          const CacheView& cache, float* out) {
  const Call call{qkv, qkv_columns, batch, spec, cache, out};
  const std::size_t state_floats = state_floats_of(cache);
  list_items(call);
  cut_into_pieces(state_floats);
  scratch_.resize(pool_.size());
  for (std::vector<float>& scratch : scratch_) scratch.resize(kQueryBlock * (2 * state_floats + kSpan));

  std::atomic<std::size_t> next{0};
  const auto work = [&](std::size_t thread) {
    for (std::size_t i = next.fetch_add(1); i < pieces_.size(); i = next.fetch_add(1)) run_piece(call, pieces_[i], scratch_[thread].data());
  };
  if (pieces_.size() == 1) {
    work(0);
  } else {
    pool_.run(work);
  }
  if (pieces_.size() == items_.size()) return;
  std::atomic<std::size_t> next_item{0};
  pool_.run([&](std::size_t thread) {
    for (std::size_t i = next_item.fetch_add(1); i < items_.size(); i = next_item.fetch_add(1)) {
      if (items_[i].states != SIZE_MAX) merge_spans(call, items_[i], scratch_[thread].data());
    }
  });
}

void AttentionRunner::list_items(const Call& call) {
  heads_of_.resize(call.spec.num_kv_heads);
  for (auto& heads : heads_of_) heads.clear();
  for (std::uint32_t head = 0; head < call.spec.num_heads; ++head) heads_of_.at(call.spec.kv_head_of.at(head)).push_back(head);
  items_.clear();
  for (const StepBatch::Sequence& sequence : call.batch.sequences) {
    for (std::uint32_t kv_head = 0; kv_head < heads_of_.size(); ++kv_head) {
      const std::uint32_t heads = static_cast<std::uint32_t>(heads_of_[kv_head].size());
      const std::uint32_t queries = sequence.num_tokens * heads;
      for (std::uint32_t first = 0; first < queries; first += kQueryBlock) {
        const std::uint32_t count = std::min<std::uint32_t>(kQueryBlock, queries - first);
        const std::uint32_t low = sequence.first_position + first / heads, high = sequence.first_position + (first + count - 1) / heads;
        const std::uint32_t begin = call.spec.window != 0 && low + 1 > call.spec.window ? low + 1 - call.spec.window : 0;
        items_.push_back({&sequence, kv_head, first, count, static_cast<std::uint32_t>(begin / kSpan),
                          static_cast<std::uint32_t>(high / kSpan + 1), SIZE_MAX});
      }
    }
  }
}

void AttentionRunner::cut_into_pieces(std::size_t state_floats) {
  pieces_.clear();
  std::size_t all_spans = 0, states = 0;
  for (const Item& item : items_) all_spans += item.end_span - item.first_span;
  const std::size_t wanted = kPiecesOfThread * pool_.size();
  const bool few = pool_.size() > 1 && items_.size() < wanted;
  const std::size_t most = few ? std::max(kFewestSpans, (all_spans + wanted - 1) / wanted) : SIZE_MAX;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const std::size_t spans = item.end_span - item.first_span;
    if (spans <= most) {
      pieces_.push_back({i, item.first_span, item.end_span});
      continue;
    }
    item.states = states;
    states += item.count * spans * state_floats;
    for (std::uint32_t span = item.first_span; span < item.end_span; span += static_cast<std::uint32_t>(most)) {
      pieces_.push_back({i, span, static_cast<std::uint32_t>(std::min<std::size_t>(item.end_span, span + most))});
    }
  }
  if (partial_states_.size() < states) partial_states_.resize(states);
}

QueryBlock AttentionRunner::queries_of(const Call& call, const Item& item) const {
  const std::vector<std::uint32_t>& heads = heads_of_[item.kv_head];
  QueryBlock block{};
  block.count = item.count;
  for (std::size_t i = 0; i < item.count; ++i) {
    const std::size_t token = (item.first_query + i) / heads.size(), head = heads[(item.first_query + i) % heads.size()];
    block.queries[i] = call.qkv + (item.sequence->first_token + token) * call.qkv_columns + head * call.cache.head_dim;
    block.positions[i] = item.sequence->first_position + static_cast<std::uint32_t>(token);
    if (!call.spec.slopes.empty()) block.slopes[i] = call.spec.slopes.at(head);
  }
  block.block_table = call.batch.block_tables.data() + item.sequence->block_table;
  block.kv_head = item.kv_head;
  block.scale = call.spec.scale;
  block.window = call.spec.window;
  block.soft_cap = call.spec.soft_cap;
  block.sloped = !call.spec.slopes.empty();
  return block;
}

float* AttentionRunner::output_of(const Call& call, const Item& item, std::size_t query) const {
  const std::vector<std::uint32_t>& heads = heads_of_[item.kv_head];
  const std::size_t token = (item.first_query + query) / heads.size(), head = heads[(item.first_query + query) % heads.size()];
  return call.out + ((item.sequence->first_token + token) * call.spec.num_heads + head) * call.cache.head_dim;
}

void AttentionRunner::run_piece(const Call& call, const Piece& piece, float* scratch) {
  const Item& item = items_[piece.item];
  const std::size_t state_floats = state_floats_of(call.cache);
  const QueryBlock block = queries_of(call, item);
  if (item.states == SIZE_MAX) {
    float* states = scratch;
    kernels_.attend(call.cache, block, piece.first_span, piece.end_span, states, state_floats, 0, scratch + kQueryBlock * state_floats);
    for (std::size_t query = 0; query < item.count; ++query) {
      kernels_.finish_state(states + query * state_floats, call.cache.head_dim, output_of(call, item, query));
    }
    return;
  }
  const std::size_t query_stride = (item.end_span - item.first_span) * state_floats;
  float* states = partial_states_.data() + item.states + (piece.first_span - item.first_span) * state_floats;
  kernels_.attend(call.cache, block, piece.first_span, piece.end_span, states, query_stride, state_floats, scratch);
}

void AttentionRunner::merge_spans(const Call& call, const Item& item, float* state) {
  const std::size_t state_floats = state_floats_of(call.cache), spans = item.end_span - item.first_span;
  for (std::size_t query = 0; query < item.count; ++query) {
    state[state_floats - kStateExtra + 2] = 0.0f;
    const float* partial = partial_states_.data() + item.states + query * spans * state_floats;
    for (std::size_t span = 0; span < spans; ++span) kernels_.merge_state(state, partial + span * state_floats, call.cache.head_dim);
    kernels_.finish_state(state, call.cache.head_dim, output_of(call, item, query));
  }
}

}  // namespace lockstep::device::cpu
