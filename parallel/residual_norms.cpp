#include "parallel/residual_norms.h"

#include <utility>

namespace lockstep::parallel {

void fuse_residual_norms(std::vector<RankNode>& nodes) {
  std::vector<RankNode> fused;
  for (RankNode& node : nodes) {
    RankNode* add = fused.empty() ? nullptr : &fused.back();
    if (node.op != RankOp::kNorm || !node.tap.empty() || add == nullptr || add->op != RankOp::kAdd || add->output != node.input) {
      fused.push_back(std::move(node));
      continue;
    }
    add->op = RankOp::kAddNorm;
    add->residual = add->output;
    add->output = node.output;
    add->norm = node.norm;
    add->eps = node.eps;
    add->norm_weight = node.norm_weight;
    add->norm_bias = node.norm_bias;
    add->name += ", " + node.name;
    if (fused.size() < 2) continue;
    const RankNode reduce = fused[fused.size() - 2];
    if (reduce.op != RankOp::kAllReduce || reduce.output != add->input || !reduce.tap.empty()) continue;
    add->tree = reduce.tree;
    add->name = reduce.name + ", " + add->name;
    fused.erase(fused.end() - 2);
  }
  nodes = std::move(fused);
}

}  // namespace lockstep::parallel
