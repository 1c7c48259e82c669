#include "parallel/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "parallel/rank_parts.h"
#include "parallel/reduction_tree.h"
#include "parallel/residual_norms.h"

namespace lockstep::parallel {
namespace {

using device::Activation;

const char* suffix_of(Activation type) {
  switch (type) {
    case Activation::kFloat32: return "";
    case Activation::kInt8Blocks: return ".int8";
    case Activation::kFloat16: return ".f16";
    case Activation::kBFloat16: return ".bf16";
  }
  return "?";
}

bool row_parallel(ShardKind kind) { return kind == ShardKind::kAttentionColumns || kind == ShardKind::kFeedForwardColumns; }

class Planner {
 public:
  Planner(const Graph& graph, std::size_t rank, std::size_t num_ranks, const ActivationRule& activation_for, bool one_leaf)
      : graph_(graph), activation_for_(activation_for), parts_(graph, rank, num_ranks, one_leaf, out_) {
    out_.dims = graph.dims;
    out_.tensors = graph.tensors;
    out_.rotaries = graph.rotaries;
    for (const Attention& attention : graph.attentions) out_.attentions.push_back(local_attention(attention));
  }

  RankGraph run() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_node(i);
    if (out_.logits == kNone) throw std::invalid_argument("plan: the graph computes no logits");
    fuse_residual_norms(out_.nodes);
    return std::move(out_);
  }

 private:
  const Shard& shard() const { return out_.shard; }
  bool alone() const { return shard().num_ranks == 1; }

  Attention local_attention(Attention attention) const {
    if (attention.slopes.empty()) return attention;
    const auto begin = attention.slopes.begin();
    attention.slopes = {begin + static_cast<std::ptrdiff_t>(shard().heads.begin), begin + static_cast<std::ptrdiff_t>(shard().heads.end)};
    return attention;
  }

  std::size_t columns_of(const Value& value) const {
    const ModelDims& dims = graph_.dims;
    switch (value.width) {
      case Width::kHidden: return dims.hidden;
      case Width::kQkv: return (shard().heads.size() + 2 * shard().kv_heads.size()) * dims.head_dim;
      case Width::kAttention: return shard().heads.size() * dims.head_dim;
      case Width::kGateUp: return 2 * shard().inner_columns(value.inner).size();
      case Width::kFeedForward: return shard().inner_columns(value.inner).size();
      case Width::kVocabulary: return shard().vocabulary.size();
      case Width::kFixed: return value.columns;
    }
    throw std::invalid_argument("plan: a value has no width");
  }

  /// The rank's copy of a value in one representation, made when first needed.
  std::size_t value_of(ValueId id, Activation type) {
    const auto [found, fresh] = values_.try_emplace({id, type}, out_.values.size());
    if (fresh) {
      const Value& value = graph_.values[id];
      out_.values.push_back({.name = value.name + suffix_of(type), .columns = columns_of(value), .type = type});
    }
    return found->second;
  }

  Activation wanted_by(const std::vector<TensorId>& weights) const { return activation_for_(graph_.tensors[weights.front()].dtype); }

  /// Weights of a node in runs of the same type: each run is one product.
  std::vector<std::vector<TensorId>> runs_of_type(const std::vector<TensorId>& weights) const {
    std::vector<std::vector<TensorId>> runs;
    for (const TensorId id : weights) {
      if (runs.empty() || graph_.tensors[runs.back().front()].dtype != graph_.tensors[id].dtype) runs.emplace_back();
      runs.back().push_back(id);
    }
    return runs;
  }

  /// What all readers of what node `index` writes want, if they are products that agree. A reader that differs finds floats, and converts.
  Activation written_by(std::size_t index) const {
    const ValueId value = graph_.nodes[index].output;
    std::optional<Activation> wanted;
    for (std::size_t i = index + 1; i < graph_.nodes.size(); ++i) {
      const Node& reader = graph_.nodes[i];
      if (std::find(reader.inputs.begin(), reader.inputs.end(), value) != reader.inputs.end()) {
        if (reader.op == Op::kExperts && value == reader.inputs.front()) {  // gate and up of all are of one type: see add_experts
          if (wanted.value_or(wanted_by(reader.weights)) != wanted_by(reader.weights)) return Activation::kFloat32;
          wanted = wanted_by(reader.weights);
          continue;
        }
        if (reader.op != Op::kLinear) return Activation::kFloat32;
        for (const auto& run : runs_of_type(reader.weights)) {
          const Activation type = wanted_by(run);
          if (wanted.value_or(type) != type) return Activation::kFloat32;
          wanted = type;
        }
      }
      if (reader.output != value) continue;
      if (is_in_place(reader.op)) return Activation::kFloat32;
      break;
    }
    return wanted.value_or(Activation::kFloat32);
  }

  RankNode& add(RankOp op, const Node& node, std::string name) {
    out_.nodes.push_back({.op = op,
                          .layer = node.layer,
                          .name = std::move(name),
                          .norm = node.norm,
                          .eps = node.eps,
                          .gating = node.gating,
                          .factor = node.factor,
                          .offset = node.offset,
                          .attention = node.attention,
                          .routing = node.routing});
    return out_.nodes.back();
  }

  /// A node that writes a value which may be rounded right away.
  RankNode& add_producer(RankOp op, std::size_t index, const std::string& name) {
    const Node& node = graph_.nodes[index];
    const Activation type = written_by(index);
    current_[node.output] = type;
    RankNode& made = add(op, node, name);
    made.output = value_of(node.output, type);
    made.tap = node.tap;
    return made;
  }

  std::size_t input_as(const Node& node, Activation wanted, const std::string& name) {
    const ValueId value = node.inputs.front();
    const Activation stands = current_.contains(value) ? current_[value] : Activation::kFloat32;
    if (stands == wanted || converted_[value] == wanted) return value_of(value, wanted);
    if (wanted == Activation::kFloat32) throw std::invalid_argument("plan: " + name + " needs floats of a value that was rounded");
    RankNode& convert = add(RankOp::kConvert, node, name + " input");
    convert.input = value_of(value, stands);
    convert.output = value_of(value, wanted);
    converted_[value] = wanted;
    return convert.output;
  }

  /// What stands side by side in one product and is used together: queries, keys and values of a head, gate and up of a column.
  void mark_parts(const Node& node, RankWeight& weight) const {
    const Width width = graph_.values[node.output].width;
    if ((width != Width::kQkv && width != Width::kGateUp) || weight.pieces.size() < 2) return;
    weight.spec.part_rows.clear();
    for (const WeightPiece& piece : weight.pieces) weight.spec.part_rows.push_back(piece.rows.size());
  }

  void add_linear(const Node& node, const std::string& name) {
    const TensorDecl& first_tensor = graph_.tensors[node.weights.front()];
    std::size_t out_column = 0;
    std::size_t next_bias = 0;
    for (const auto& run : runs_of_type(node.weights)) {
      const std::size_t input = input_as(node, wanted_by(run), name);
      const std::size_t output = value_of(node.output, Activation::kFloat32);
      RankNode& linear = add(RankOp::kLinear, node, name);
      linear.input = input;
      linear.output = output;
      linear.weight = parts_.add_weight(run);
      mark_parts(node, out_.weights[linear.weight]);
      linear.out_column = out_column;
      if (!node.biases.empty()) {
        const auto first = node.biases.begin() + static_cast<std::ptrdiff_t>(next_bias);
        linear.vector = parts_.add_vector({first, first + static_cast<std::ptrdiff_t>(run.size())});
        next_bias += run.size();
      }
      const device::WeightSpec& spec = out_.weights[linear.weight].spec;
      out_column += spec.rows;
      RankValue& value = out_.values[output];
      value.row_factor = std::max(value.row_factor, spec.num_roots());
    }
    current_[node.output] = Activation::kFloat32;
    if (row_parallel(first_tensor.shard) && !alone())
      all_reduce(node, name, value_of(node.output, Activation::kFloat32), parts_.tree_of(first_tensor));
    if (first_tensor.shard == ShardKind::kVocabularyRows) out_.logits = value_of(node.output, Activation::kFloat32);
  }

  void all_reduce(const Node& node, const std::string& name, std::size_t value, std::size_t tree) {
    RankNode& reduce = add(RankOp::kAllReduce, node, name + " all-reduce");
    reduce.input = reduce.output = value;
    reduce.tree = tree;
  }

  /// The products of the chosen experts, leaf by leaf: a down projection gives a root for each leaf, and the op adds experts, then leaves.
  void add_experts(const Node& node, const std::string& name) {
    const TensorDecl& first_gate = graph_.tensors[node.weights.at(0)];
    const TensorDecl& first_down = graph_.tensors[node.weights.at(2)];
    std::vector<std::size_t> experts;
    for (std::size_t i = 0; i < node.weights.size(); i += 3) {
      for (const auto& [tensor, model] :
           {std::pair(node.weights[i], &first_gate), {node.weights[i + 1], &first_gate}, {node.weights[i + 2], &first_down}}) {
        if (graph_.tensors[tensor].dtype != model->dtype) {
          throw std::invalid_argument(fmt::format("plan: {} is of type {}, {} of type {}: the experts of a layer must have the same types",
                                                  graph_.tensors[tensor].name, device::info(graph_.tensors[tensor].dtype).name, model->name,
                                                  device::info(model->dtype).name));
        }
      }
      experts.push_back(parts_.add_weight({node.weights[i], node.weights[i + 1]}));
      experts.push_back(parts_.add_weight({node.weights[i + 2]}));
      for (device::Leaf& leaf : out_.weights[experts.back()].spec.leaves) leaf = {.end = leaf.end, .merges = 0, .ends_root = true};
    }
    std::vector<std::size_t> biases;
    const bool has_first_leaf = shard().inner_leaves(first_down.inner).begin == 0;
    for (std::size_t i = 0; i < node.biases.size(); i += 3) {
      biases.push_back(parts_.add_vector({node.biases[i], node.biases[i + 1]}));
      biases.push_back(has_first_leaf ? parts_.add_vector({node.biases[i + 2]}) : kNone);
    }
    const std::size_t input = input_as(node, activation_for_(first_gate.dtype), name);
    const std::size_t output = value_of(node.output, Activation::kFloat32);
    std::vector<device::Leaf> leaves = parts_.leaves_of_product(first_down, 0);
    const auto roots =
        static_cast<std::size_t>(std::count_if(leaves.begin(), leaves.end(), [](const device::Leaf& leaf) { return leaf.ends_root; }));
    out_.values[output].row_factor = std::max(out_.values[output].row_factor, roots);
    current_[node.output] = Activation::kFloat32;
    RankNode& sum = add(RankOp::kExperts, node, name);
    sum.input = input;
    sum.output = output;
    sum.residual = value_of(node.inputs.at(1), Activation::kFloat32);
    sum.experts = std::move(experts);
    sum.expert_biases = std::move(biases);
    sum.leaves = std::move(leaves);
    if (!alone()) all_reduce(node, name, output, parts_.tree_of(first_down));
  }

  void add_head_norms(const Node& node, const std::string& name) {
    const std::size_t qkv = value_of(node.output, Activation::kFloat32);
    const std::size_t head_dim = graph_.dims.head_dim;
    for (const bool queries : {true, false}) {
      const Range range = queries ? shard().heads : shard().kv_heads;
      const std::size_t heads = range.size(), column = queries ? 0 : shard().heads.size() * head_dim;
      if (node.weights.size() > 2) {  // each head has its own
        for (std::size_t i = 0; i < heads; ++i) {
          const std::size_t which = (queries ? 0 : graph_.dims.num_heads) + range.begin + i;
          const std::size_t weight = parts_.add_vector({node.weights.at(which)});
          RankNode& norm = add(RankOp::kNormHeads, node, name);
          norm.input = norm.output = qkv;
          norm.out_column = column + i * head_dim;
          norm.heads = 1;
          norm.norm_weight = weight;
        }
        continue;
      }
      const std::size_t weight = parts_.add_vector({node.weights.at(queries ? 0 : 1)});
      const std::size_t bias = node.biases.empty() ? kNone : parts_.add_vector({node.biases.at(queries ? 0 : 1)});
      std::size_t squares = kNone;
      if (node.op == Op::kNormAllHeads) squares = add_square_sum(node, name, qkv, column, queries);
      RankNode& norm = add(node.op == Op::kNormHeads ? RankOp::kNormHeads : RankOp::kNormBySquare, node, name);
      norm.input = norm.output = qkv;
      norm.out_column = column;
      norm.heads = heads;
      norm.norm_weight = weight;
      norm.norm_bias = bias;
      norm.residual = squares;
      norm.norm_columns = (queries ? graph_.dims.num_heads : graph_.dims.num_kv_heads) * head_dim;
    }
  }

  std::size_t add_square_sum(const Node& node, const std::string& name, std::size_t qkv, std::size_t column, bool queries) {
    const Range heads = queries ? shard().heads : shard().kv_heads;
    const Range own = queries ? heads : parts_.own_kv_heads(shard());
    const std::string value_name = queries ? "squares.q" : "squares.k";
    const auto known =
        std::find_if(out_.values.begin(), out_.values.end(), [&](const RankValue& value) { return value.name == value_name; });
    const auto squares = static_cast<std::size_t>(known - out_.values.begin());
    if (known == out_.values.end())
      out_.values.push_back({.name = value_name, .columns = 1, .row_factor = std::max<std::size_t>(1, own.size())});
    RankNode& sum = add(RankOp::kSquareHeads, node, name);
    sum.input = qkv;
    sum.output = squares;
    sum.out_column = column + (own.begin - heads.begin) * graph_.dims.head_dim;
    sum.heads = own.size();
    all_reduce(node, name, squares, parts_.tree_of_heads(queries));
    return squares;
  }

  void add_embed(const Node& node, const std::string& name) {
    RankNode& embed = add(RankOp::kEmbed, node, name);
    embed.weight = parts_.add_weight(node.weights);
    const std::size_t x = value_of(node.output, Activation::kFloat32);
    embed.output = x;
    if (!alone()) {
      // One rank has the row of a token, the others have zeros: the sum is exact.
      std::vector<Range> shares;
      for (std::size_t rank = 0; rank < parts_.shards().size(); ++rank) shares.push_back({rank, rank + 1});
      all_reduce(node, name, x, parts_.add_tree(ReductionTree(shares.size()).tree_sum(shares)));
    }
    tap_last(node);
  }

  void add_node(std::size_t index) {
    const Node& node = graph_.nodes[index];
    const std::string name = name_of(graph_, node);
    converted_.erase(node.output);
    switch (node.op) {
      case Op::kEmbed: add_embed(node, name); return;
      case Op::kLinear:
        add_linear(node, name);
        tap_last(node);
        return;
      case Op::kExperts:
        add_experts(node, name);
        tap_last(node);
        return;
      case Op::kNormHeads:
      case Op::kNormAllHeads: add_head_norms(node, name); return;
      case Op::kNorm: {
        RankNode& norm = add_producer(RankOp::kNorm, index, name);
        norm.norm_weight = parts_.add_vector(node.weights);
        norm.norm_bias = parts_.add_vector(node.biases);
        norm.input = value_of(node.inputs.front(), Activation::kFloat32);
        return;
      }
      case Op::kAttention: add_from_floats(RankOp::kAttention, index, name).vector = parts_.add_vector(node.weights); return;
      case Op::kGated: add_from_floats(RankOp::kGated, index, name); return;
      case Op::kActivate: add_from_floats(RankOp::kActivate, index, name); return;
      case Op::kAddPositions: add_in_place(RankOp::kAddPositions, node, name).weight = parts_.add_weight(node.weights); return;
      case Op::kScale: add_in_place(RankOp::kScale, node, name); return;
      case Op::kSoftCap: add_in_place(RankOp::kSoftCap, node, name); return;
      case Op::kGateRows: add_in_place(RankOp::kGateRows, node, name); return;
      case Op::kRoute: add_in_place(RankOp::kRoute, node, name); return;
      case Op::kSelectLogitRows: add_in_place(RankOp::kSelectLogitRows, node, name); return;
      case Op::kRotateAndAppend:
        add(RankOp::kRotateAndAppend, node, name).input = value_of(node.inputs.front(), Activation::kFloat32);
        return;
      case Op::kAdd: {
        RankNode& sum = add_in_place(RankOp::kAdd, node, name);
        sum.vector = parts_.add_vector(node.biases);
        sum.tap_input = node.tap_input;
        return;
      }
    }
  }

  RankNode& add_from_floats(RankOp op, std::size_t index, const std::string& name) {
    RankNode& made = add_producer(op, index, name);
    made.input = value_of(graph_.nodes[index].inputs.front(), Activation::kFloat32);
    return made;
  }

  /// A node that reads floats, where it reads anything but its output, and writes floats.
  RankNode& add_in_place(RankOp op, const Node& node, const std::string& name) {
    RankNode& made = add(op, node, name);
    if (!node.inputs.empty()) made.input = value_of(node.inputs.front(), Activation::kFloat32);
    made.output = value_of(node.output, Activation::kFloat32);
    made.tap = node.tap;
    return made;
  }

  void tap_last(const Node& node) { out_.nodes.back().tap = node.tap; }

  const Graph& graph_;
  const ActivationRule& activation_for_;
  RankGraph out_;
  RankParts parts_;
  std::map<std::pair<ValueId, Activation>, std::size_t> values_;
  std::map<ValueId, Activation> current_;    // how the value stands now
  std::map<ValueId, Activation> converted_;  // and as what else
};

}  // namespace

RankGraph plan(const Graph& graph, std::size_t rank, std::size_t num_ranks, const ActivationRule& activation_for, bool one_leaf) {
  check_num_ranks(graph.dims, num_ranks);
  if (one_leaf && num_ranks != 1) throw std::invalid_argument("plan: products of one leaf are for one rank");
  return Planner(graph, rank, num_ranks, activation_for, one_leaf).run();
}

}  // namespace lockstep::parallel
