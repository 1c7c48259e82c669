// The blocks of a mixture of experts.

#include "engine/model/blocks.h"

namespace lockstep::engine {

using parallel::Op;
using parallel::ShardKind;
using parallel::Width;

GraphBuilder::Projection GraphBuilder::expert_projection(const ExpertModules& modules, ExpertPart which, std::size_t expert,
                                                         std::size_t layer) const {
  const bool is_down = which == ExpertPart::kDown, is_up = which == ExpertPart::kUp;
  const std::size_t hidden = spec_.hidden_size, inner = spec_.experts.intermediate_size;
  const std::string& name = is_down ? modules.down : is_up ? modules.up : modules.gate;
  Projection made{modules.experts + "." + std::to_string(expert) + "." + name, is_down ? hidden : inner, is_down ? inner : hidden};
  made.shard = is_down ? ShardKind::kFeedForwardColumns : ShardKind::kFeedForwardRows;
  made.inner = inner_of(inner);
  const char* gguf = is_down ? "ffn_down_exps" : is_up ? "ffn_up_exps" : "ffn_gate_exps";
  if (!is_gguf() && modules.fused.empty()) {
    made.part.name = file_name(made.module, gguf, layer);
    return made;
  }
  // The experts of a layer are one tensor, one behind the other.
  made.stack_place = expert;
  made.part.shape = {spec_.experts.count, made.rows};
  made.part.name = file_name(modules.experts + "." + (is_down ? modules.down : modules.fused), gguf, layer);
  if (is_gguf()) return made;
  made.weight_suffix = "";
  made.bias_suffix = "_bias";
  made.part.transposed = spec_.experts.stored_in_out;
  if (!is_down) made.part.shape.back() *= 2, made.part.first = is_up ? 1 : 0, made.part.run = 1, made.part.stride = 2;
  return made;
}

GraphBuilder::Sum GraphBuilder::experts(ValueId h, const ExpertModules& modules, std::size_t layer) {
  const ExpertSpec& spec = spec_.experts;
  const std::size_t hidden = spec_.hidden_size;
  const ValueId logits = value("router", Width::kFixed, 0, spec.count), weights = value("routing", Width::kFixed, 0, spec.count);
  linear(h, logits,
         {{.module = modules.router,
           .rows = spec.count,
           .columns = hidden,
           .part = {.name = file_name(modules.router, "ffn_gate_inp", layer)}}},
         spec.bias, layer);
  parallel::Node& route = node(Op::kRoute, layer);
  route.inputs = {logits};
  route.output = weights;
  const device::Routing routing{.per_token = spec.per_token, .renormalised = spec.renormalised};
  route.routing = routing;
  const ValueId sum = value("p", Width::kHidden);
  parallel::Node mixture{.op = Op::kExperts, .inputs = {h, weights}, .output = sum, .layer = layer, .gating = gating(), .routing = routing};
  for (std::size_t expert = 0; expert < spec.count; ++expert) {
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      const Projection projection = expert_projection(modules, part, expert, layer);
      mixture.weights.push_back(weight_of(projection));
      if (spec.bias) mixture.biases.push_back(bias_of(projection));
    }
  }
  graph_.nodes.push_back(std::move(mixture));
  if (modules.shared.empty()) return {sum};

  const FeedForwardModules shared = FeedForwardModules::standard(modules.shared);
  const std::size_t shared_size = inner_of(spec.shared_intermediate_size);
  const ValueId of_all = value("p.shared", Width::kHidden);
  const ValueId shared_inner = inner_product(h, shared, shared_size, layer, "_shexp");
  Projection down{shared.down, hidden, spec.shared_intermediate_size, ShardKind::kFeedForwardColumns, false, shared_size};
  down.part.name = file_name(shared.down, "ffn_down_shexp", layer);
  linear(shared_inner, of_all, {down}, false, layer);
  const ValueId gate = value("shared.gate", Width::kFixed, 0, 1);
  Projection gate_row{.module = modules.shared_gate, .rows = 1, .columns = hidden};
  gate_row.part.name = file_name(modules.shared_gate, "ffn_gate_inp_shexp", layer);
  gate_row.stored_as_vector = is_gguf();
  linear(h, gate, {gate_row}, false, layer);
  parallel::Node& gated = node(Op::kGateRows, layer);
  gated.inputs = {gate};
  gated.output = of_all;
  parallel::Node& both = node(Op::kAdd, layer);
  both.inputs = {of_all};
  both.output = sum;
  return {sum};
}

}  // namespace lockstep::engine
