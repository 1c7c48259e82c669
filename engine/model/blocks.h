#pragma once

#include <string>
#include <vector>

#include "engine/model/spec.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// Builds a graph block by block. A family is a sequence of calls of this (see llama.cpp); what it can not say belongs here, as a block,
/// not into a family. Modules are named as in Hugging Face files, without ".weight": those are the canonical names of tensors.
class GraphBuilder {
 public:
  using ValueId = parallel::ValueId;

  explicit GraphBuilder(const ModelSpec& spec);

  /// Returns x [tokens, hidden], the residual stream: the embedding of the tokens.
  ValueId embedding(const std::string& module);
  /// Returns h = norm(x).
  ValueId rms_norm(ValueId x, const std::string& module, std::size_t layer);
  /// x += W_o attention(rotate(W_qkv h)): causal, KV heads shared by groups of query heads; the output projection is summed over the ranks.
  void attention(ValueId x, ValueId h, const std::string& module, std::size_t layer);
  /// x += W_down (silu(W_gate h) * W_up h), summed over the ranks.
  void swiglu(ValueId x, ValueId h, const std::string& module, std::size_t layer);
  /// logits = W norm(x), for the rows whose logits are wanted.
  void head(ValueId x, const std::string& norm_module, const std::string& head_module);

  parallel::Graph take() { return std::move(graph_); }

 private:
  /// out = [in] W^T, the weights stacked by rows; a column-parallel product also adds its biases.
  struct Projection {
    std::string module;
    std::size_t rows = 0;
    std::size_t columns = 0;
    parallel::ShardKind shard = parallel::ShardKind::kReplicated;
    bool rotary_rows = false;
  };
  parallel::Node& rms_norm_into(ValueId h, ValueId x, const std::string& module, std::size_t layer);
  void linear(ValueId in, ValueId out, const std::vector<Projection>& projections, bool bias, std::size_t layer);
  void add(ValueId x, ValueId delta, const std::string& bias_module, std::size_t layer, const std::string& tap_delta,
           const std::string& tap_sum);
  parallel::TensorId tensor(parallel::TensorDecl tensor);
  ValueId value(const std::string& name, parallel::Width width);
  parallel::Node& node(parallel::Op op, std::size_t layer);

  const ModelSpec& spec_;
  parallel::Graph graph_;
};

}  // namespace lockstep::engine
