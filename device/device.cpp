#include "device/device.h"

#include <algorithm>

namespace lockstep::device {

std::string_view name_of(Activation type) {
  switch (type) {
    case Activation::kFloat32: return "float32";
    case Activation::kInt8Blocks: return "int8";
    case Activation::kFloat16: return "float16";
    case Activation::kBFloat16: return "bfloat16";
  }
  return "?";
}

std::string_view name_of(Nonlinearity function) {
  switch (function) {
    case Nonlinearity::kSilu: return "silu";
    case Nonlinearity::kGelu: return "gelu";
    case Nonlinearity::kGeluTanh: return "gelu_tanh";
    case Nonlinearity::kRelu: return "relu";
  }
  return "?";
}

std::string_view name_of(KvQuantisation quantised) {
  switch (quantised) {
    case KvQuantisation::kNone: return "";
    case KvQuantisation::kFloat8: return "fp8";
    case KvQuantisation::kInt8: return "int8";
  }
  return "?";
}

std::size_t WeightSpec::num_roots() const {
  return static_cast<std::size_t>(std::count_if(leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.ends_root; }));
}

std::size_t WeightSpec::stored_row_bytes() const { return covering_bytes(dtype, first_column, columns); }

std::size_t KvCacheSpec::bytes_per_block() const {
  const std::size_t vector = quantised == KvQuantisation::kNone ? head_dim * info(dtype).block_bytes : head_dim + sizeof(float);
  return 2 * num_layers * num_kv_heads * block_size * vector;
}

}  // namespace lockstep::device
