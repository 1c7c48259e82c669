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
  // A graph has a tensor for each expert, and for each head where heads have norms of their own.
  const auto check_all_layers = [&](const char* what, std::size_t in_each) {
    if (in_each * spec.num_layers > SpecLimits::kInAllLayers) {
      fail(std::to_string(spec.num_layers) + " layers of " + std::to_string(in_each) + " " + what + " are more than " +
           std::to_string(SpecLimits::kInAllLayers) + " of these together");
    }
  };
  check_all_layers("heads", spec.num_heads);
  check_all_layers("experts", spec.experts.count);
  if (spec.rope.rotary_dim % 2 != 0 || spec.rope.rotary_dim > spec.head_dim) {
    fail("the rotary dimension is " + std::to_string(spec.rope.rotary_dim) + "; an even number up to the dimension of a head, " +
         std::to_string(spec.head_dim) + ", is needed");
  }
}

}  // namespace lockstep::engine
