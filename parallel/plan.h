#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "parallel/graph.h"
#include "parallel/shard.h"

namespace lockstep::parallel {

/// A slice of a tensor of the whole model: rows [rows.begin, rows.end) of its columns [columns.begin, columns.end).
struct WeightPiece {
  TensorId tensor = 0;
  Range rows;
  Range columns;
};

/// A matrix of one rank: pieces of the same type stacked by rows, with the leaves of its product.
struct RankWeight {
  std::string name;
  std::vector<WeightPiece> pieces;
  device::WeightSpec spec;
};

/// A vector of one rank (norm weights, biases), fp32: pieces of vectors, one behind the other.
struct RankVector {
  std::string name;
  std::vector<WeightPiece> pieces;
  std::size_t size = 0;
};

/// A matrix of activations of one rank. Values of the same name share memory from layer to layer.
struct RankValue {
  std::string name;
  std::size_t columns = 0;
  std::size_t row_factor = 1;  // roots of partial sums that stand one behind the other
  device::Activation type = device::Activation::kFloat32;
};

/// What a rank does, in order: the compute nodes of the model's graph with local sizes, and the collectives that make the cut invisible.
enum class RankOp : std::uint8_t {
  kEmbed,  // the rows of `weight` that this rank has, zeros for the others
  kAddPositions,
  kScale,
  kSoftCap,
  kNorm,
  kNormHeads,     // `heads` heads of `input` from column `out_column` on, in place
  kSquareHeads,   // the square sum of each of them, one root a head, to `output`
  kNormBySquare,  // those heads by the square sum in `residual`, over `norm_columns` columns in all, in place
  kConvert,
  kLinear,
  kRotateAndAppend,
  kAttention,
  kGated,
  kActivate,
  kRoute,
  kExperts,    // `experts`: their weights, gate and up of each, then down
  kGateRows,   // `output` *= sigmoid(input)
  kAllReduce,  // collective: finishes the tree `tree` over the roots in `input`, in place
  kAdd,
  kAddNorm,  // `residual` += input (+ vector), output = its norm; with a tree, `input` is all-reduced first: collective
  kSelectLogitRows,
};

struct RankNode {
  RankOp op = RankOp::kEmbed;
  std::size_t input = kNone;        // value
  std::size_t output = kNone;       // value
  std::size_t weight = kNone;       // of RankGraph::weights
  std::size_t vector = kNone;       // of RankGraph::vectors: what is added to a product or a delta; kAttention: the sinks
  std::size_t residual = kNone;     // value: the x of kAddNorm
  std::size_t norm_weight = kNone;  // of RankGraph::vectors: of all norms
  std::size_t norm_bias = kNone;
  std::size_t tree = kNone;    // of RankGraph::trees
  std::size_t out_column = 0;  // kLinear: where the product stands in the output
  std::size_t layer = 0;
  std::string name;  // "layer 3 down_proj": for positions and messages
  std::string tap;   // see Node
  std::string tap_input;

  device::Norm::Kind norm = device::Norm::Kind::kRms;  // these as in Node
  float eps = 0.0f;
  device::Gating gating = {};
  float factor = 1.0f;
  std::size_t offset = 0;
  std::size_t attention = kNone;  // of RankGraph::attentions
  device::Routing routing = {};
  std::size_t heads = 0;
  std::size_t norm_columns = 0;
  std::vector<std::size_t> experts = {};        // of RankGraph::weights
  std::vector<std::size_t> expert_biases = {};  // of RankGraph::vectors, as many as `experts`; those of down where the first leaf is
  std::vector<device::Leaf> leaves = {};        // kExperts: how the leaves of their sum become roots
};

/// One rank's part of a model: pure data, printable, the same for every device.
struct RankGraph {
  ModelDims dims;
  Shard shard;
  std::vector<Range> vocabulary_shares;  // [ranks]
  std::vector<TensorDecl> tensors;       // of the whole model, as in Graph
  std::vector<RankWeight> weights;
  std::vector<RankVector> vectors;
  std::vector<RankValue> values;
  std::vector<comm::TreeSum> trees;
  std::vector<RankNode> nodes;
  std::vector<Rotary> rotaries;
  std::vector<Attention> attentions;  // with the slopes of this rank's heads
  std::size_t logits = kNone;         // value: [logit rows, local vocabulary]
};

/// How the activations must stand that are multiplied with weights of a type: Device::activation_for.
using ActivationRule = std::function<device::Activation(device::DType)>;

/// Cuts `graph` for one rank. Each activation is planned in the representation that its consumers' weights ask for.
/// @throws std::invalid_argument as shard_of does, or where the graph is not consistent.
/// `one_leaf`: every product is one chain. Other answers, for one rank only: it shows what leaves and trees cost.
RankGraph plan(const Graph& graph, std::size_t rank, std::size_t num_ranks, const ActivationRule& activation_for, bool one_leaf = false);

/// The plan as text, one line a node of the first layer and what surrounds the layers: what `lockstep inspect` shows and the tests compare.
std::string print(const RankGraph& graph, bool all_layers = false);

}  // namespace lockstep::parallel
