// A rank graph as text: how a model is cut is reviewed by reading it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "parallel/plan.h"

namespace lockstep::parallel {
namespace {

std::string op_name(const RankNode& node) {
  std::string norm = node.norm == device::Norm::Kind::kRms ? "rms_norm" : "layer_norm";
  std::string function(device::name_of(node.gating.function));
  switch (node.op) {
    case RankOp::kEmbed: return "embed";
    case RankOp::kAddPositions: return "add_positions";
    case RankOp::kScale: return fmt::format("scale {}", node.factor);
    case RankOp::kSoftCap: return fmt::format("soft_cap {}", node.factor);
    case RankOp::kNorm: return norm;
    case RankOp::kNormHeads: return "norm_heads";
    case RankOp::kSquareHeads: return "square_heads";
    case RankOp::kNormBySquare: return "norm_by_square";
    case RankOp::kConvert: return "convert";
    case RankOp::kLinear: return "linear";
    case RankOp::kRotateAndAppend: return "rotate_append";
    case RankOp::kAttention: return "attention";
    case RankOp::kGated: return node.gating.function == device::Nonlinearity::kSilu ? "swiglu" : "gated_" + function;
    case RankOp::kActivate: return function;
    case RankOp::kRoute: return fmt::format("route top {}", node.routing.per_token);
    case RankOp::kExperts: return "experts";
    case RankOp::kGateRows: return "gate_rows";
    case RankOp::kAllReduce: return "all_reduce";
    case RankOp::kAdd: return "add";
    case RankOp::kAddNorm: return (node.tree == kNone ? "add_" : "reduce_add_") + (node.tree == kNone ? norm : std::string("norm"));
    case RankOp::kSelectLogitRows: return "select_rows";
  }
  return "?";
}

std::string value_text(const RankGraph& graph, std::size_t value, bool with_size) {
  if (value == kNone) return "";
  const RankValue& v = graph.values[value];
  return with_size ? fmt::format("{}[tok,{}]", v.name, v.columns) : v.name;
}

std::string weight_text(const RankGraph& graph, const RankWeight& weight) {
  std::string text;
  for (const WeightPiece& piece : weight.pieces) {
    const TensorDecl& tensor = graph.tensors[piece.tensor];
    text += fmt::format("{}{}[{}..{} of {}, {}..{} of {}]", text.empty() ? "" : " + ", tensor.name, piece.rows.begin, piece.rows.end,
                        tensor.rows, piece.columns.begin, piece.columns.end, tensor.columns);
  }
  text += fmt::format(" {}", device::info(weight.spec.dtype).name);
  if (weight.spec.leaves.size() > 1) text += fmt::format(", {} leaves to {} roots", weight.spec.leaves.size(), weight.spec.num_roots());
  return text;
}

}  // namespace

std::string print(const RankGraph& graph, bool all_layers) {
  const Shard& shard = graph.shard;
  std::string text = fmt::format("rank {} of {}: query heads {}..{}, KV heads {}..{}, inner columns {}..{}, vocabulary {}..{}\n",
                                 shard.rank, shard.num_ranks, shard.heads.begin, shard.heads.end, shard.kv_heads.begin, shard.kv_heads.end,
                                 shard.feed_forward.begin, shard.feed_forward.end, shard.vocabulary.begin, shard.vocabulary.end);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const RankNode& node = graph.nodes[i];
    if (!all_layers && node.layer > 0 && node.layer < graph.dims.num_layers) continue;
    const std::string inputs =
        value_text(graph, node.input, false) + (node.residual == kNone ? "" : ", " + value_text(graph, node.residual, false));
    const std::string outputs =
        (node.residual == kNone ? "" : value_text(graph, node.residual, false) + ", ") + value_text(graph, node.output, true);
    text += fmt::format("n{:02} {:<16} {:<16} -> {:<20}", i, op_name(node), inputs, outputs);
    if (node.weight != kNone) text += "  " + weight_text(graph, graph.weights[node.weight]);
    if (!node.experts.empty())
      text += fmt::format("  {} experts of {}{}", node.experts.size() / 2, weight_text(graph, graph.weights[node.experts[0]]),
                          node.expert_biases.empty() ? "" : ", biases");
    for (const std::size_t vector : {node.vector, node.norm_weight, node.norm_bias})
      if (vector != kNone) text += fmt::format("  {}[{}]", graph.vectors[vector].name, graph.vectors[vector].size);
    if (node.tree != kNone) text += fmt::format("  roots of ranks {}", fmt::join(graph.trees[node.tree].roots_per_rank, "+"));
    while (text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::parallel
