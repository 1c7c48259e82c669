#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/graph.h"
#include "parallel/reduction_tree.h"

namespace lockstep::parallel {

/// Ids of the vocabulary are cut in segments of this many, the unit of the reductions over it (docs/numerics.md, N6).
inline constexpr std::size_t kVocabularySegment = 16;

/// The leaves of a model: the only units of a cut. They depend on the model alone, never on the ranks (docs/numerics.md, "Leaves").
struct Leaves {
  std::vector<std::size_t> attention_ends;     // [leaves] first query head behind each leaf
  std::vector<std::size_t> feed_forward_ends;  // [leaves] first inner column behind each leaf
  std::size_t vocabulary_segments = 0;
  std::vector<std::vector<std::size_t>> more_feed_forward_ends;  // of ModelDims::more_feed_forwards

  const std::vector<std::size_t>& inner_ends(std::size_t which) const {
    return which == 0 ? feed_forward_ends : more_feed_forward_ends.at(which - 1);
  }

  std::size_t max_ranks() const;
};

/// @throws std::invalid_argument that names the dimension and its value where sizes are zero or do not divide.
Leaves leaves_of(const ModelDims& dims);

/// What one rank of a group owns.
struct Shard {
  std::size_t rank = 0;
  std::size_t num_ranks = 1;
  Range attention_leaves;
  Range feed_forward_leaves;
  Range heads;                                  // query heads
  Range kv_heads;                               // that those read; two ranks may hold the same one
  Range feed_forward;                           // inner columns
  Range vocabulary;                             // ids; may be empty
  std::vector<Range> more_feed_forward_leaves;  // of the model's further inner sizes
  std::vector<Range> more_feed_forwards;

  Range inner_leaves(std::size_t which) const { return which == 0 ? feed_forward_leaves : more_feed_forward_leaves.at(which - 1); }
  Range inner_columns(std::size_t which) const { return which == 0 ? feed_forward : more_feed_forwards.at(which - 1); }
};

/// @throws std::invalid_argument if there are more ranks than leaves: names the dimension and the legal range.
void check_num_ranks(const ModelDims& dims, std::size_t num_ranks);
Shard shard_of(const ModelDims& dims, std::size_t rank, std::size_t num_ranks);
std::vector<Shard> all_shards(const ModelDims& dims, std::size_t num_ranks);

/// Largest share / even share of the matrix work of a layer: 1 is a perfect cut; the speed-up over one rank can be num_ranks / imbalance at
/// most.
double imbalance(const ModelDims& dims, std::size_t num_ranks);
/// The same over the weights that a token streams: layers and LM head.
double weight_imbalance(const ModelDims& dims, std::size_t num_ranks);

/// A table for people: one line a rank.
std::string describe_shards(const ModelDims& dims, std::size_t num_ranks);

}  // namespace lockstep::parallel
