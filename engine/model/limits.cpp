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
  if (spec.rope.rotary_dim % 2 != 0 || spec.rope.rotary_dim > spec.head_dim) {
    fail("the rotary dimension is " + std::to_string(spec.rope.rotary_dim) + "; an even number up to the dimension of a head, " +
         std::to_string(spec.head_dim) + ", is needed");
  }
}

}  // namespace lockstep::engine
