#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "engine/model/registry.h"
#include "engine/model/spec.h"
#include "engine/weights/source.h"
#include "parallel/plan.h"

namespace lockstep::engine {

/// Checks every tensor of the graph against the files (there, and of this shape), and enters the types that they will be loaded as.
/// `dtype`: F32, F16 or BF16, what all matrices are converted to (--dtype); absent: as stored.
/// @throws std::runtime_error that names the file and the tensor.
void bind_tensors(parallel::Graph& graph, const ModelSpec& spec, const WeightSource& source, std::optional<device::DType> dtype);

/// One rank's weights on its device, by the indices of the rank graph. A weight of no rows is null.
struct LoadedShard {
  std::vector<std::unique_ptr<device::Weight>> weights;
  std::vector<std::unique_ptr<device::Buffer>> vectors;
  std::size_t size_bytes() const;
};

/// Reads the byte ranges that the rank owns, and no others.
LoadedShard load_shard(const parallel::RankGraph& graph, const ModelSpec& spec, const WeightSource& source, device::Device& device);

}  // namespace lockstep::engine
