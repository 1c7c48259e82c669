#include "device/device.h"

#include <algorithm>
#include <stdexcept>
#include <string>

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
    case Nonlinearity::kGeluQuick: return "gelu_quick";
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

void WeightSpec::check(std::size_t most_open_sums) const {
  const auto refuse = [&](const std::string& what) { throw std::invalid_argument("weight '" + name + "': " + what); };
  if (columns == 0) refuse("it has no columns");
  stored_row_bytes();
  if (leaves.empty()) refuse("it has no leaves");
  std::size_t begin = 0, open = 0;
  for (const Leaf& leaf : leaves) {
    const std::string place = "the leaf that ends at column " + std::to_string(leaf.end);
    if (leaf.end <= begin || leaf.end > columns)
      refuse(place + " is not in (" + std::to_string(begin) + ", " + std::to_string(columns) + "]");
    if (leaf.end % info(dtype).cut_size() != 0) refuse(place + " ends within a block");
    if (leaf.merges > open) refuse(place + " merges more sums than there are");
    begin = leaf.end;
    open = open + 1 - leaf.merges;
    if (open > most_open_sums) refuse("its leaves leave more than " + std::to_string(most_open_sums) + " sums open");
    if (leaf.ends_root && open != 1) refuse(place + " ends a root of " + std::to_string(open) + " sums");
    if (leaf.ends_root) open = 0;
  }
  if (begin != columns || open != 0) refuse("its leaves do not cover its " + std::to_string(columns) + " columns with whole roots");
}

std::size_t WeightSpec::stored_row_bytes() const { return covering_bytes(dtype, first_column, columns); }

std::size_t KvCacheSpec::num_tables() const {
  std::size_t tables = 1;
  for (const KvPlace& place : places) tables = std::max<std::size_t>(tables, place.table + 1);
  return tables;
}

std::size_t KvCacheSpec::num_slots() const {
  if (places.empty()) return num_layers;
  std::size_t slots = 0;
  for (const KvPlace& place : places) slots = std::max<std::size_t>(slots, place.slot + 1);
  return slots;
}

std::size_t KvCacheSpec::bytes_per_token() const { return bytes_per_block() / block_size * num_tables(); }

std::size_t KvCacheSpec::bytes_per_block() const {
  const std::size_t vector = quantised == KvQuantisation::kNone ? head_dim * info(dtype).block_bytes : head_dim + sizeof(float);
  return 2 * num_slots() * num_kv_heads * block_size * vector;
}

void Device::sum_add_norm(const Matrix&, const SumOfParts&, std::size_t, const float*, const Norm&, const Matrix&) {
  throw std::logic_error("sum_add_norm: the parts would have to stand in the memory of this device (" + description() + ")");
}

}  // namespace lockstep::device
