#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/dtype.h"

namespace lockstep::parallel {

inline constexpr std::size_t kNone = static_cast<std::size_t>(-1);

/// The sizes of a whole model, before it is cut.
struct ModelDims {
  std::size_t num_layers = 0;
  std::size_t hidden = 0;
  std::size_t num_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t feed_forward = 0;  // inner columns
  std::size_t vocabulary = 0;
  bool block_quantised =
      false;  // some matrix is stored in blocks of 32: leaves then end at block borders, also when it is expanded (--dtype float32)
  std::vector<std::size_t> more_feed_forwards;  // inner sizes 1, 2, ... of models with blocks of several (experts, a shared expert)

  std::size_t inner_size(std::size_t which) const { return which == 0 ? feed_forward : more_feed_forwards.at(which - 1); }
  std::size_t num_inner_sizes() const { return 1 + more_feed_forwards.size(); }
};

/// How a tensor is cut, and thereby which collective repairs what is computed with it: the two come from one place.
enum class ShardKind : std::uint8_t {
  kReplicated,
  kVocabularyRows,      // embedding and LM head: a rank has rows of some ids; what they give is gathered
  kQueryHeads,          // a number for each query head: those of this rank's
  kQueryRows,           // column-parallel: the rows that make this rank's query heads
  kKvRows,              // column-parallel: the rows that make the KV heads which this rank's query heads read
  kFeedForwardRows,     // column-parallel: the rows that make this rank's inner columns
  kAttentionColumns,    // row-parallel: partial sums over attention leaves, all-reduced
  kFeedForwardColumns,  // row-parallel: partial sums over feed-forward leaves, all-reduced
};

/// Where a tensor stands in the files, alone or as a part of a stored tensor. Row r is stored row
/// `first + r / run * stride + r % run`; of a transposed tensor rows and columns change places, and `first_column` counts its stored rows.
struct StoredPart {
  std::string name;                // of the stored tensor; empty: as TensorDecl::name
  std::vector<std::size_t> shape;  // of the stored tensor; all axes but the last count as rows; empty: as the tensor's own
  std::size_t first = 0;
  std::size_t run = 0;  // rows that stand together; 0: all of them
  std::size_t stride = 0;
  std::size_t first_column = 0;
  bool transposed = false;

  std::size_t row(std::size_t r) const { return run == 0 ? first + r : first + r / run * stride + r % run; }
};

/// A tensor of the whole model, by its canonical name.
struct TensorDecl {
  std::string name;
  std::size_t rows = 0;  // 0: a vector of `columns` elements
  std::size_t columns = 0;
  ShardKind shard = ShardKind::kReplicated;
  bool rotary_rows = false;                   // its rows are dims of heads that are rotated: files may store them in another order
  device::DType dtype = device::DType::kF32;  // as it is loaded
  std::size_t inner = 0;                      // which inner size kFeedForwardRows and kFeedForwardColumns are about
  StoredPart stored = {};
  float offset = 0.0f;  // added to each element of a vector when it is loaded

  bool is_vector() const { return rows == 0; }
  const std::string& file_name() const { return stored.name.empty() ? name : stored.name; }
  std::vector<std::size_t> file_shape() const {
    if (!stored.shape.empty()) return stored.shape;
    return is_vector() ? std::vector{columns} : std::vector{rows, columns};
  }
};

using TensorId = std::size_t;
using ValueId = std::size_t;

/// The width of a row of activations, as a function of the shard.
enum class Width : std::uint8_t { kHidden, kQkv, kAttention, kGateUp, kFeedForward, kVocabulary, kFixed };

struct Value {
  std::string name;
  Width width = Width::kHidden;
  std::size_t inner = 0;    // kGateUp, kFeedForward: which inner size
  std::size_t columns = 0;  // kFixed: the same on every rank
};

/// How pairs of dims (i, i + dim / 2) are rotated: by position * frequency.
struct Rotary {
  std::size_t dim = 0;             // of a head: the first ones
  std::vector<float> frequencies;  // [dim / 2]
  float factor = 1.0f;             // of cos and sin
  /// For sequences longer than `long_from` tokens, where that is not 0: these, or those of a base that grows with the length.
  std::size_t long_from = 0;
  std::vector<float> long_frequencies;  // [dim / 2], or empty:
  double growing_base = 0.0;            // frequencies of growing_base * (growth * length / long_from - (growth - 1))^(dim / (dim - 2))
  double growth = 1.0;

  bool depends_on_length() const { return long_from != 0; }
  bool operator==(const Rotary&) const = default;
};

/// How a layer attends.
struct Attention {
  float scale = 0.0f;          // of the scores
  std::uint32_t window = 0;    // see device::AttentionSpec
  float soft_cap = 0.0f;       // 0: none
  std::vector<float> slopes;   // [num_heads]: added to a score for each position of the key; empty: nothing is
  std::size_t rotary = kNone;  // of Graph::rotaries; kNone: nothing is rotated

  bool operator==(const Attention&) const = default;
};

enum class Op : std::uint8_t {
  kEmbed,            // tokens -> x
  kAddPositions,     // x += the rows of the positions (from row `offset` on) of a table
  kScale,            // x *= factor, in place
  kSoftCap,          // x = factor * tanh(x / factor), in place
  kNorm,             // x -> h; weight and bias, where there are any, in `weights` and `biases`
  kNormHeads,        // qkv: each query head, then each key head, in place; a weight (and bias) for q and one for k, or one for each head
  kNormAllHeads,     // likewise over all heads of the model together: a reduction over ranks
  kLinear,           // h -> product with the stacked `weights`
  kRotateAndAppend,  // qkv: rotates queries and keys, appends to the cache
  kAttention,        // qkv -> a; the sinks of the heads in `weights`, where there are any
  kGated,            // gate_up -> f
  kActivate,         // u -> f
  kRoute,            // router logits -> weights of the experts
  kExperts,          // h, weights of the experts -> their sum; gate, up and down of each in `weights`, and in `biases`, where there are any
  kGateRows,         // p *= sigmoid(g), for g of one column, in place
  kAdd,              // x += p (+ bias)
  kSelectLogitRows,  // x -> the rows whose logits are wanted
};

/// Whether the op reads its output, too.
bool is_in_place(Op op);

/// One node of the model. Weights and biases are stacked by rows where there are several (q, k, v; gate, up).
struct Node {
  Op op = Op::kEmbed;
  std::vector<ValueId> inputs;
  ValueId output = 0;
  std::vector<TensorId> weights;
  std::vector<TensorId> biases;
  std::size_t layer = 0;
  std::string tap = {};        // the name under which --dump-hidden writes the output; empty: it is not written
  std::string tap_input = {};  // kAdd: likewise for the input, its bias included

  device::Norm::Kind norm = device::Norm::Kind::kRms;
  float eps = 0.0f;               // of the norm
  device::Gating gating = {};     // kGated, kExperts; its function alone: kActivate
  float factor = 1.0f;            // kScale, kSoftCap
  std::size_t offset = 0;         // kAddPositions
  std::size_t attention = kNone;  // of Graph::attentions: kRotateAndAppend, kAttention
  device::Routing routing = {};   // kRoute, kExperts
};

/// A model as data: what is computed, in order, before any rank is known.
struct Graph {
  ModelDims dims;
  std::vector<TensorDecl> tensors;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Rotary> rotaries;
  std::vector<Attention> attentions;

  TensorId add_tensor(TensorDecl tensor) {
    tensors.push_back(std::move(tensor));
    return tensors.size() - 1;
  }
};

/// For positions and messages: "layer 3 attention", or the name of its weight.
std::string name_of(const Graph& graph, const Node& node);

}  // namespace lockstep::parallel
