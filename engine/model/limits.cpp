#include "engine/model/limits.h"

#include <stdexcept>
#include <string>

namespace lockstep::engine {

void check_consistency(const ModelSpec& spec) {
  const auto fail = [&](const std::string& message) { throw std::runtime_error(spec.source + ": " + message); };
  if (spec.num_kv_heads > spec.num_heads || spec.num_heads % spec.num_kv_heads != 0) {
    fail("the number of heads, " + std::to_string(spec.num_heads) + ", is no multiple of the number of key/value heads, " +
         std::to_string(spec.num_kv_heads));
  }
  if (spec.head_dim % 2 != 0) fail("the dimension of a head, " + std::to_string(spec.head_dim) + ", is odd: its halves cannot be rotated");
  if (spec.rope.rotary_dim != spec.head_dim) {
    fail("the rotary dimension, " + std::to_string(spec.rope.rotary_dim) + ", is not the dimension of a head, " +
         std::to_string(spec.head_dim) + "; partial rotation is not supported in this family");
  }
}

}  // namespace lockstep::engine
