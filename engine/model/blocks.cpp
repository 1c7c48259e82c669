#include "engine/model/blocks.h"

#include <algorithm>

namespace lockstep::engine {

using parallel::Op;
using parallel::ShardKind;
using parallel::Width;

GraphBuilder::GraphBuilder(const ModelSpec& spec) : spec_(spec) {
  graph_.dims = {.num_layers = spec.num_layers,
                 .hidden = spec.hidden_size,
                 .num_heads = spec.num_heads,
                 .num_kv_heads = spec.num_kv_heads,
                 .head_dim = spec.head_dim,
                 .feed_forward = spec.intermediate_size,
                 .vocabulary = spec.vocab_size};
  graph_.rms_norm_eps = spec.rms_norm_eps;
}

GraphBuilder::ValueId GraphBuilder::embedding(const std::string& module) {
  const ValueId x = value("x", Width::kHidden);
  parallel::Node& embed = node(Op::kEmbed, 0);
  embed.output = x;
  embed.weights = {tensor({module + ".weight", spec_.vocab_size, spec_.hidden_size, ShardKind::kVocabularyRows})};
  embed.tap = "layer.0.in";
  return x;
}

GraphBuilder::ValueId GraphBuilder::rms_norm(ValueId x, const std::string& module, std::size_t layer) {
  const ValueId h = value("h", Width::kHidden);
  rms_norm_into(h, x, module, layer);
  return h;
}

parallel::Node& GraphBuilder::rms_norm_into(ValueId h, ValueId x, const std::string& module, std::size_t layer) {
  parallel::Node& norm = node(Op::kRmsNorm, layer);
  norm.inputs = {x};
  norm.output = h;
  norm.weights = {tensor({module + ".weight", 0, spec_.hidden_size})};
  return norm;
}

void GraphBuilder::attention(ValueId x, ValueId h, const std::string& module, std::size_t layer) {
  const std::size_t query_rows = spec_.num_heads * spec_.head_dim;
  const std::size_t kv_rows = spec_.num_kv_heads * spec_.head_dim;
  const ValueId qkv = value("qkv", Width::kQkv);
  linear(h, qkv,
         {{module + ".q_proj", query_rows, spec_.hidden_size, ShardKind::kQueryRows, true},
          {module + ".k_proj", kv_rows, spec_.hidden_size, ShardKind::kKvRows, true},
          {module + ".v_proj", kv_rows, spec_.hidden_size, ShardKind::kKvRows}},
         spec_.attention_bias, layer);
  parallel::Node& rotate = node(Op::kRotateAndAppend, layer);
  rotate.inputs = {qkv};
  rotate.output = qkv;
  const ValueId heads = value("a", Width::kAttention);
  parallel::Node& attend = node(Op::kAttention, layer);
  attend.inputs = {qkv};
  attend.output = heads;
  const ValueId sum = value("p", Width::kHidden);
  linear(heads, sum, {{module + ".o_proj", spec_.hidden_size, query_rows, ShardKind::kAttentionColumns}}, false, layer);
  add(x, sum, spec_.attention_output_bias ? module + ".o_proj" : "", layer, "layer." + std::to_string(layer) + ".attn_out", "");
}

void GraphBuilder::swiglu(ValueId x, ValueId h, const std::string& module, std::size_t layer) {
  const ValueId gate_up = value("gate_up", Width::kGateUp);
  linear(h, gate_up,
         {{module + ".gate_proj", spec_.intermediate_size, spec_.hidden_size, ShardKind::kFeedForwardRows},
          {module + ".up_proj", spec_.intermediate_size, spec_.hidden_size, ShardKind::kFeedForwardRows}},
         spec_.mlp_bias, layer);
  const ValueId inner = value("f", Width::kFeedForward);
  parallel::Node& activation = node(Op::kSwiglu, layer);
  activation.inputs = {gate_up};
  activation.output = inner;
  const ValueId sum = value("p", Width::kHidden);
  linear(inner, sum, {{module + ".down_proj", spec_.hidden_size, spec_.intermediate_size, ShardKind::kFeedForwardColumns}}, false, layer);
  const std::string layer_name = "layer." + std::to_string(layer);
  add(x, sum, spec_.mlp_bias ? module + ".down_proj" : "", layer, layer_name + ".mlp_out", layer_name + ".out");
}

void GraphBuilder::head(ValueId x, const std::string& norm_module, const std::string& head_module) {
  const std::size_t after_layers = spec_.num_layers;
  const ValueId selected = value("x.selected", Width::kHidden);
  parallel::Node& select = node(Op::kSelectLogitRows, after_layers);
  select.inputs = {x};
  select.output = selected;
  const ValueId h = value("h.selected", Width::kHidden);
  rms_norm_into(h, selected, norm_module, after_layers).tap = "final_norm";
  linear(h, value("logits", Width::kVocabulary), {{head_module, spec_.vocab_size, spec_.hidden_size, ShardKind::kVocabularyRows}}, false,
         after_layers);
}

void GraphBuilder::linear(ValueId in, ValueId out, const std::vector<Projection>& projections, bool bias, std::size_t layer) {
  std::vector<parallel::TensorId> weights;
  std::vector<parallel::TensorId> biases;
  for (const Projection& projection : projections) {
    weights.push_back(
        tensor({projection.module + ".weight", projection.rows, projection.columns, projection.shard, projection.rotary_rows}));
    if (bias) biases.push_back(tensor({projection.module + ".bias", 0, projection.rows, projection.shard, projection.rotary_rows}));
  }
  parallel::Node& product = node(Op::kLinear, layer);
  product.inputs = {in};
  product.output = out;
  product.weights = weights;
  product.biases = biases;
}

void GraphBuilder::add(ValueId x, ValueId delta, const std::string& bias_module, std::size_t layer, const std::string& tap_delta,
                       const std::string& tap_sum) {
  parallel::Node& sum = node(Op::kAdd, layer);
  sum.inputs = {delta};
  sum.output = x;
  if (!bias_module.empty()) sum.biases = {tensor({bias_module + ".bias", 0, spec_.hidden_size})};
  sum.tap_input = tap_delta;
  sum.tap = tap_sum;
}

parallel::TensorId GraphBuilder::tensor(parallel::TensorDecl tensor) {
  const auto known = std::find_if(graph_.tensors.begin(), graph_.tensors.end(),
                                  [&](const parallel::TensorDecl& candidate) { return candidate.name == tensor.name; });
  if (known != graph_.tensors.end()) return static_cast<parallel::TensorId>(known - graph_.tensors.begin());
  return graph_.add_tensor(std::move(tensor));
}

GraphBuilder::ValueId GraphBuilder::value(const std::string& name, Width width) {
  const auto known =
      std::find_if(graph_.values.begin(), graph_.values.end(), [&](const parallel::Value& candidate) { return candidate.name == name; });
  if (known != graph_.values.end()) return static_cast<ValueId>(known - graph_.values.begin());
  return graph_.add_value(name, width);
}

parallel::Node& GraphBuilder::node(Op op, std::size_t layer) {
  graph_.nodes.push_back({.op = op, .layer = layer});
  return graph_.nodes.back();
}

}  // namespace lockstep::engine
