#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/dtype.h"

namespace lockstep::parallel {

/// The sizes of a whole model, before it is cut.
struct ModelDims {
  std::size_t num_layers = 0;
  std::size_t hidden = 0;
  std::size_t num_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t feed_forward = 0;
  std::size_t vocabulary = 0;
  bool block_quantised =
      false;  // some matrix is stored in blocks of 32: leaves then end at block borders, also when it is expanded (--dtype float32)
};

/// How a tensor is cut, and thereby which collective repairs what is computed with it: the two come from one place.
enum class ShardKind : std::uint8_t {
  kReplicated,
  kVocabularyRows,      // embedding and LM head: a rank has rows of some ids; what they give is gathered
  kQueryRows,           // column-parallel: the rows that make this rank's query heads
  kKvRows,              // column-parallel: the rows that make the KV heads which this rank's query heads read
  kFeedForwardRows,     // column-parallel: the rows that make this rank's inner columns
  kAttentionColumns,    // row-parallel: partial sums over attention leaves, all-reduced
  kFeedForwardColumns,  // row-parallel: partial sums over feed-forward leaves, all-reduced
};

/// A tensor of the whole model, by its canonical name.
struct TensorDecl {
  std::string name;
  std::size_t rows = 0;  // 0: a vector of `columns` elements
  std::size_t columns = 0;
  ShardKind shard = ShardKind::kReplicated;
  bool rotary_rows = false;                   // its rows are dims of heads that are rotated: files may store them in another order
  device::DType dtype = device::DType::kF32;  // as it is loaded

  bool is_vector() const { return rows == 0; }
};

using TensorId = std::size_t;
using ValueId = std::size_t;

/// The width of a row of activations, as a function of the shard.
enum class Width : std::uint8_t { kHidden, kQkv, kAttention, kGateUp, kFeedForward, kVocabulary };

struct Value {
  std::string name;
  Width width = Width::kHidden;
};

enum class Op : std::uint8_t {
  kEmbed,            // tokens -> x
  kRmsNorm,          // x -> h
  kLinear,           // h -> product with the stacked `weights`
  kRotateAndAppend,  // qkv: rotates queries and keys, appends to the cache
  kAttention,        // qkv -> a
  kSwiglu,           // gate_up -> f
  kAdd,              // x += p (+ bias)
  kSelectLogitRows,  // x -> the rows whose logits are wanted
};

/// One node of the model. Weights and biases are stacked by rows where there are several (q, k, v; gate, up).
struct Node {
  Op op = Op::kEmbed;
  std::vector<ValueId> inputs;
  ValueId output = 0;
  std::vector<TensorId> weights;
  std::vector<TensorId> biases;
  std::size_t layer = 0;
  std::string tap;        // the name under which --dump-hidden writes the output; empty: it is not written
  std::string tap_input;  // kAdd: likewise for the input, its bias included
};

/// A model as data: what is computed, in order, before any rank is known.
struct Graph {
  ModelDims dims;
  float rms_norm_eps = 0.0f;
  std::vector<TensorDecl> tensors;
  std::vector<Value> values;
  std::vector<Node> nodes;

  TensorId add_tensor(TensorDecl tensor) {
    tensors.push_back(std::move(tensor));
    return tensors.size() - 1;
  }
  ValueId add_value(std::string name, Width width) {
    values.push_back({std::move(name), width});
    return values.size() - 1;
  }
};

}  // namespace lockstep::parallel
