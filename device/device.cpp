#include "device/device.h"

#include <algorithm>

namespace lockstep::device {

std::size_t WeightSpec::num_roots() const {
  return static_cast<std::size_t>(std::count_if(leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.ends_root; }));
}

std::size_t KvCacheSpec::bytes_per_block() const { return 2 * num_layers * num_kv_heads * head_dim * block_size * info(dtype).block_bytes; }

}  // namespace lockstep::device
