#include "parallel/rank_parts.h"

#include <algorithm>
#include <stdexcept>

#include "device/device.h"
#include "parallel/reduction_tree.h"

namespace lockstep::parallel {
namespace {

std::vector<std::size_t> scaled(const std::vector<std::size_t>& ends, std::size_t factor) {
  std::vector<std::size_t> result(ends);
  for (std::size_t& end : result) end *= factor;
  return result;
}

}  // namespace

RankParts::RankParts(const Graph& graph, std::size_t rank, std::size_t num_ranks, bool one_leaf, RankGraph& out)
    : graph_(graph), one_leaf_(one_leaf), leaves_(leaves_of(graph.dims)), shards_(all_shards(graph.dims, num_ranks)), out_(out) {
  out_.shard = shards_[rank];
  for (const Shard& peer : shards_) out_.vocabulary_shares.push_back(peer.vocabulary);
}

Range RankParts::local_rows(const TensorDecl& tensor, std::size_t all) const {
  const std::size_t head_dim = graph_.dims.head_dim;
  const auto times = [](Range range, std::size_t factor) { return Range{range.begin * factor, range.end * factor}; };
  switch (tensor.shard) {
    case ShardKind::kVocabularyRows: return shard().vocabulary;
    case ShardKind::kQueryHeads: return shard().heads;
    case ShardKind::kQueryRows: return times(shard().heads, head_dim);
    case ShardKind::kKvRows: return times(shard().kv_heads, head_dim);
    case ShardKind::kFeedForwardRows: return shard().inner_columns(tensor.inner);
    default: return {0, all};
  }
}

Range RankParts::local_columns(const TensorDecl& tensor) const {
  const std::size_t head_dim = graph_.dims.head_dim;
  if (tensor.shard == ShardKind::kAttentionColumns) return {shard().heads.begin * head_dim, shard().heads.end * head_dim};
  if (tensor.shard == ShardKind::kFeedForwardColumns) return shard().inner_columns(tensor.inner);
  return {0, tensor.columns};
}

std::vector<device::Leaf> RankParts::leaves_of_product(const TensorDecl& tensor, std::size_t num_columns) const {
  if (tensor.shard == ShardKind::kAttentionColumns && !one_leaf_) {
    return ReductionTree(leaves_.attention_ends.size())
        .leaf_program(shard().attention_leaves, scaled(leaves_.attention_ends, graph_.dims.head_dim));
  }
  if (tensor.shard == ShardKind::kFeedForwardColumns && !one_leaf_) {
    const std::vector<std::size_t>& ends = leaves_.inner_ends(tensor.inner);
    return ReductionTree(ends.size()).leaf_program(shard().inner_leaves(tensor.inner), ends);
  }
  return {{.end = static_cast<std::uint32_t>(num_columns), .merges = 0, .ends_root = true}};
}

std::size_t RankParts::add_weight(const std::vector<TensorId>& tensors) {
  const auto known = weights_.find(tensors);
  if (known != weights_.end()) return known->second;
  RankWeight weight;
  const TensorDecl& first = graph_.tensors[tensors.front()];
  for (const TensorId id : tensors) {
    const TensorDecl& tensor = graph_.tensors[id];
    if (tensor.is_vector()) throw std::invalid_argument("plan: " + tensor.name + " is used as a matrix and is a vector");
    const WeightPiece piece{id, local_rows(tensor, tensor.rows), local_columns(tensor)};
    if (tensor.dtype != first.dtype || piece.columns != local_columns(first)) {
      throw std::invalid_argument("plan: " + tensor.name + " can not be stacked with " + first.name);
    }
    weight.name += (weight.name.empty() ? "" : "+") + tensor.name;
    weight.spec.rows += piece.rows.size();
    weight.pieces.push_back(piece);
  }
  weight.spec.name = weight.name;
  weight.spec.dtype = first.dtype;
  weight.spec.columns = weight.pieces.front().columns.size();
  weight.spec.first_column = weight.pieces.front().columns.begin % device::info(first.dtype).block_size;
  weight.spec.leaves = leaves_of_product(first, weight.spec.columns);
  out_.weights.push_back(std::move(weight));
  return weights_[tensors] = out_.weights.size() - 1;
}

std::size_t RankParts::add_vector(const std::vector<TensorId>& tensors) {
  if (tensors.empty()) return kNone;
  RankVector vector;
  for (const TensorId id : tensors) {
    const TensorDecl& tensor = graph_.tensors[id];
    if (!tensor.is_vector())
      throw std::invalid_argument("plan: " + tensor.name + " is used as a vector and has " + std::to_string(tensor.rows) + " rows");
    const WeightPiece piece{id, {0, 1}, local_rows(tensor, tensor.columns)};
    vector.name += (vector.name.empty() ? "" : "+") + tensor.name;
    vector.size += piece.columns.size();
    vector.pieces.push_back(piece);
  }
  out_.vectors.push_back(std::move(vector));
  return out_.vectors.size() - 1;
}

std::size_t RankParts::tree_of(const TensorDecl& tensor) {
  const bool over_heads = tensor.shard == ShardKind::kAttentionColumns;
  std::vector<Range> shares;
  for (const Shard& peer : shards_) shares.push_back(over_heads ? peer.attention_leaves : peer.inner_leaves(tensor.inner));
  return add_tree(ReductionTree(over_heads ? leaves_.attention_ends.size() : leaves_.inner_ends(tensor.inner).size()).tree_sum(shares));
}

std::size_t RankParts::tree_of_heads(bool queries) {
  std::vector<Range> heads;
  const std::size_t num_heads = queries ? graph_.dims.num_heads : graph_.dims.num_kv_heads;
  for (std::size_t head = 0; head < num_heads; ++head) heads.push_back({head, head + 1});
  comm::TreeSum tree = ReductionTree(num_heads).tree_sum(heads);
  tree.roots_per_rank.clear();
  for (const Shard& peer : shards_) {
    const Range own = queries ? peer.heads : own_kv_heads(peer);
    tree.roots_per_rank.push_back(static_cast<std::uint32_t>(own.size()));
  }
  return add_tree(tree);
}

Range RankParts::own_kv_heads(const Shard& peer) const {
  const std::size_t begin = peer.rank == 0 ? 0 : shards_[peer.rank - 1].kv_heads.end;
  return {std::max(begin, peer.kv_heads.begin), peer.kv_heads.end};
}

std::size_t RankParts::add_tree(const comm::TreeSum& tree) {
  const auto known = std::find(out_.trees.begin(), out_.trees.end(), tree);
  if (known != out_.trees.end()) return static_cast<std::size_t>(known - out_.trees.begin());
  out_.trees.push_back(tree);
  return out_.trees.size() - 1;
}

}  // namespace lockstep::parallel
