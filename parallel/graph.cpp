#include "parallel/graph.h"

#include <fmt/format.h>

namespace lockstep::parallel {

bool is_in_place(Op op) {
  switch (op) {
    case Op::kAddPositions:
    case Op::kScale:
    case Op::kSoftCap:
    case Op::kNormHeads:
    case Op::kNormAllHeads:
    case Op::kRotateAndAppend:
    case Op::kGateRows:
    case Op::kAdd: return true;
    default: return false;
  }
}

std::string name_of(const Graph& graph, const Node& node) {
  const auto in_layer = [&](const char* what) { return fmt::format("layer {} {}", node.layer, what); };
  switch (node.op) {
    case Op::kEmbed: return "embedding";
    case Op::kAddPositions: return "positions";
    case Op::kScale: return in_layer("scale");
    case Op::kSoftCap: return in_layer("soft cap");
    case Op::kNorm: return node.weights.empty() ? in_layer("norm") : graph.tensors[node.weights.front()].name;
    case Op::kLinear: return graph.tensors[node.weights.front()].name;
    case Op::kNormHeads:
    case Op::kNormAllHeads: return in_layer("query and key norm");
    case Op::kRotateAndAppend: return in_layer("rotary, KV append");
    case Op::kAttention: return in_layer("attention");
    case Op::kGated:
    case Op::kActivate: return in_layer("activation");
    case Op::kRoute: return in_layer("routing");
    case Op::kExperts: return in_layer("experts");
    case Op::kGateRows: return in_layer("gate");
    case Op::kAdd: return in_layer("residual add");
    case Op::kSelectLogitRows: return "select logit rows";
  }
  return "?";
}

}  // namespace lockstep::parallel
