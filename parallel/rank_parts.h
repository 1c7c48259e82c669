#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "parallel/plan.h"
#include "parallel/shard.h"

namespace lockstep::parallel {

/// What one rank has of the tensors of a model, and the sums that put its partial results together with those of its peers. Adds to the
/// plan what it is asked for, and gives its index there.
class RankParts {
 public:
  /// Sets the shard and the vocabulary's shares of `out`; `graph` and `out` are kept. @throws std::invalid_argument as shard_of does.
  RankParts(const Graph& graph, std::size_t rank, std::size_t num_ranks, bool one_leaf, RankGraph& out);

  const Shard& shard() const { return out_.shard; }
  const std::vector<Shard>& shards() const { return shards_; }  // [ranks]

  /// Matrices one on top of the other, once for the same ones. @throws std::invalid_argument where they do not fit together.
  std::size_t add_weight(const std::vector<TensorId>& tensors);
  /// Vectors one behind the other; kNone for none. @throws std::invalid_argument for a matrix.
  std::size_t add_vector(const std::vector<TensorId>& tensors);
  std::size_t add_tree(const comm::TreeSum& tree);

  /// The leaves of a product with `tensor`, of which this rank has `num_columns` columns.
  std::vector<device::Leaf> leaves_of_product(const TensorDecl& tensor, std::size_t num_columns) const;
  /// The sum of the ranks' products with `tensor`.
  std::size_t tree_of(const TensorDecl& tensor);
  /// A sum over all heads of the model, of one root each. A KV head that several ranks hold is the first one's.
  std::size_t tree_of_heads(bool queries);
  /// Of the KV heads of a rank those that no lower rank has.
  Range own_kv_heads(const Shard& peer) const;

 private:
  /// What the rows (of a vector: the elements) of a tensor are on this rank.
  Range local_rows(const TensorDecl& tensor, std::size_t all) const;
  Range local_columns(const TensorDecl& tensor) const;

  const Graph& graph_;
  const bool one_leaf_;
  const Leaves leaves_;
  const std::vector<Shard> shards_;
  RankGraph& out_;
  std::map<std::vector<TensorId>, std::size_t> weights_;
};

}  // namespace lockstep::parallel
