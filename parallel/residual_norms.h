#pragma once

#include <vector>

#include "parallel/plan.h"

namespace lockstep::parallel {

/// [all-reduce,] add, norm of the sum become one node, because a device can do it in one pass over the rows. A norm or an
/// all-reduce whose result is to be seen (RankNode::tap) stays one of its own.
void fuse_residual_norms(std::vector<RankNode>& nodes);

}  // namespace lockstep::parallel
