#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "engine/model/registry.h"
#include "engine/model/spec.h"
#include "engine/weights/source.h"
#include "parallel/plan.h"

namespace lockstep::engine {

/// Checks every tensor of the graph against the files (there, and of this shape), and enters the types that they will be loaded as.
/// `expand`: block-quantised and half-precision matrices are expanded to fp32 (--dtype float32).
/// @throws std::runtime_error that names the file and the tensor.
void bind_tensors(parallel::Graph& graph, const ModelSpec& spec, const WeightSource& source, bool expand);

/// One rank's weights on its device, by the indices of the rank graph. A weight of no rows is null.
struct LoadedShard {
  std::vector<std::unique_ptr<device::Weight>> weights;
  std::vector<std::unique_ptr<device::Buffer>> vectors;
  std::size_t size_bytes() const;
};

/// Reads the byte ranges that the rank owns, and no others.
LoadedShard load_shard(const parallel::RankGraph& graph, const ModelSpec& spec, const WeightSource& source, device::Device& device);

}  // namespace lockstep::engine
