#include "parallel/shard.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace lockstep::parallel {
namespace {

/// Query heads of one attention leaf.
std::size_t heads_per_leaf(const ModelDims& dims) {
  constexpr std::size_t kEnoughLeaves = 32;
  constexpr std::size_t kBlock = 32;
  const std::size_t group = dims.num_heads / dims.num_kv_heads;
  std::size_t heads = 1;
  for (std::size_t divisor = group; divisor > 1; --divisor) {
    if (group % divisor == 0 && dims.num_heads / divisor >= kEnoughLeaves) {
      heads = divisor;
      break;
    }
  }
  while (dims.block_quantised && heads < dims.num_heads && heads * dims.head_dim % kBlock != 0) ++heads;
  return heads;
}

std::vector<std::size_t> inner_ends(std::size_t inner_size, bool block_quantised) {
  const std::size_t unit = inner_size < 512 && !block_quantised ? 8 : 32;
  const std::size_t units = (inner_size + unit - 1) / unit;
  const std::size_t num_leaves = std::min<std::size_t>(units, inner_size >= 4096 ? 32 : 16);
  std::vector<std::size_t> ends(num_leaves);
  for (std::size_t leaf = 0; leaf < num_leaves; ++leaf) ends[leaf] = std::min(inner_size, even_share(units, leaf, num_leaves).end * unit);
  return ends;
}

Range units_of(const std::vector<std::size_t>& ends, Range leaves) {
  return {leaves.begin == 0 ? 0 : ends[leaves.begin - 1], ends[leaves.end - 1]};
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace

std::size_t Leaves::max_ranks() const {
  std::size_t most = std::min(attention_ends.size(), feed_forward_ends.size());
  for (const auto& ends : more_feed_forward_ends) most = std::min(most, ends.size());
  return most;
}

Leaves leaves_of(const ModelDims& dims) {
  require(dims.num_heads > 0 && dims.num_kv_heads > 0 && dims.num_heads % dims.num_kv_heads == 0,
          fmt::format("{} query heads can not share {} KV heads evenly", dims.num_heads, dims.num_kv_heads));
  require(dims.feed_forward > 0 && dims.vocabulary > 0 && dims.head_dim > 0,
          fmt::format("inner size {}, vocabulary {}, head size {}: none may be zero", dims.feed_forward, dims.vocabulary, dims.head_dim));
  Leaves leaves;
  const std::size_t step = heads_per_leaf(dims);
  for (std::size_t head = 0; head < dims.num_heads; head += step) leaves.attention_ends.push_back(std::min(head + step, dims.num_heads));
  leaves.feed_forward_ends = inner_ends(dims.feed_forward, dims.block_quantised);
  for (const std::size_t size : dims.more_feed_forwards) {
    require(size > 0, "an inner size is zero");
    leaves.more_feed_forward_ends.push_back(inner_ends(size, dims.block_quantised));
  }
  leaves.vocabulary_segments = (dims.vocabulary + kVocabularySegment - 1) / kVocabularySegment;
  return leaves;
}

void check_num_ranks(const ModelDims& dims, std::size_t num_ranks) {
  const Leaves leaves = leaves_of(dims);
  require(num_ranks > 0, "the number of ranks is 0");
  require(num_ranks <= leaves.attention_ends.size(),
          fmt::format("{} ranks are more than this model's {} attention leaves ({} query heads): 1 to {} ranks are possible", num_ranks,
                      leaves.attention_ends.size(), dims.num_heads, leaves.max_ranks()));
  for (std::size_t which = 0; which < dims.num_inner_sizes(); ++which) {
    const std::size_t num_leaves = leaves.inner_ends(which).size();
    require(num_ranks <= num_leaves,
            fmt::format("{} ranks are more than this model's {} feed-forward leaves ({} inner columns): 1 to {} ranks are possible",
                        num_ranks, num_leaves, dims.inner_size(which), leaves.max_ranks()));
  }
}

Shard shard_of(const ModelDims& dims, std::size_t rank, std::size_t num_ranks) {
  check_num_ranks(dims, num_ranks);
  require(rank < num_ranks, fmt::format("rank {} of {} ranks", rank, num_ranks));
  const Leaves leaves = leaves_of(dims);
  Shard shard{.rank = rank, .num_ranks = num_ranks};
  shard.attention_leaves = even_share(leaves.attention_ends.size(), rank, num_ranks);
  shard.feed_forward_leaves = even_share(leaves.feed_forward_ends.size(), rank, num_ranks);
  shard.heads = units_of(leaves.attention_ends, shard.attention_leaves);
  shard.feed_forward = units_of(leaves.feed_forward_ends, shard.feed_forward_leaves);
  for (const auto& ends : leaves.more_feed_forward_ends) {
    shard.more_feed_forward_leaves.push_back(even_share(ends.size(), rank, num_ranks));
    shard.more_feed_forwards.push_back(units_of(ends, shard.more_feed_forward_leaves.back()));
  }
  const std::size_t group = dims.num_heads / dims.num_kv_heads;
  shard.kv_heads = {shard.heads.begin / group, (shard.heads.end - 1) / group + 1};
  const Range segments = even_share(leaves.vocabulary_segments, rank, num_ranks);
  shard.vocabulary = {std::min(segments.begin * kVocabularySegment, dims.vocabulary),
                      std::min(segments.end * kVocabularySegment, dims.vocabulary)};
  return shard;
}

std::vector<Shard> all_shards(const ModelDims& dims, std::size_t num_ranks) {
  std::vector<Shard> shards;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) shards.push_back(shard_of(dims, rank, num_ranks));
  return shards;
}

namespace {

/// Weights of one layer that a rank streams for a token, in elements.
double layer_weights(const ModelDims& dims, const Shard& shard) {
  const std::size_t rows = 2 * shard.heads.size() + 2 * shard.kv_heads.size();  // q and o; k and v
  return static_cast<double>(dims.hidden) * static_cast<double>(rows * dims.head_dim + 3 * shard.feed_forward.size());
}

double largest_over_even(const ModelDims& dims, std::size_t num_ranks, double head_layers) {
  const auto work = [&](const Shard& shard) {
    return static_cast<double>(dims.num_layers) * layer_weights(dims, shard) +
           head_layers * static_cast<double>(dims.hidden) * static_cast<double>(shard.vocabulary.size());
  };
  double largest = 0;
  for (const Shard& shard : all_shards(dims, num_ranks)) largest = std::max(largest, work(shard));
  return largest / (work(shard_of(dims, 0, 1)) / static_cast<double>(num_ranks));
}

}  // namespace

double imbalance(const ModelDims& dims, std::size_t num_ranks) { return largest_over_even(dims, num_ranks, 0); }

double weight_imbalance(const ModelDims& dims, std::size_t num_ranks) { return largest_over_even(dims, num_ranks, 1); }

std::string describe_shards(const ModelDims& dims, std::size_t num_ranks) {
  std::string text =
      fmt::format("{:>4}  {:>12}  {:>10}  {:>14}  {:>16}\n", "rank", "query heads", "KV heads", "inner columns", "vocabulary ids");
  const auto range = [](Range r) { return r.size() == 0 ? std::string("none") : fmt::format("{}..{}", r.begin, r.end - 1); };
  for (const Shard& shard : all_shards(dims, num_ranks)) {
    text += fmt::format("{:>4}  {:>12}  {:>10}  {:>14}  {:>16}\n", shard.rank, range(shard.heads), range(shard.kv_heads),
                        range(shard.feed_forward), range(shard.vocabulary));
  }
  text += fmt::format("imbalance (largest share / even share): {:.3f} in a layer, {:.3f} with the LM head\n", imbalance(dims, num_ranks),
                      weight_imbalance(dims, num_ranks));
  return text;
}

}  // namespace lockstep::parallel
