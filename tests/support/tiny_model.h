#pragma once

#include <cstdint>
#include <filesystem>

#include "device/dtype.h"

namespace lockstep::test {

/// A Llama model with random weights that no number of ranks divides evenly: 2 layers, width 288, 9 heads of 32, 3 KV heads, 288 inner
/// columns, 257 tokens (3 specials and 254 bytes).
struct TinyModel {
  std::size_t num_layers = 2;
  std::size_t hidden = 288;
  std::size_t num_heads = 9;
  std::size_t num_kv_heads = 3;
  std::size_t feed_forward = 288;
  std::size_t context = 512;
  std::uint32_t seed = 1;
  std::size_t vocabulary = 257;  // at most that many
  bool has_tokenizer = true;
  std::int32_t nan_token = -1;    // whose embedding is not a number, as an overflow leaves it; F32 only
  bool head_of_one_sign = false;  // rows of the head are multiples of one row: all logits of a position have the same sign
};

/// Writes it as a GGUF file; matrices as `dtype` (F32, F16, BF16, Q8_0, Q4_0, Q4_1; Q4_K, Q5_K and Q6_K where the columns are multiples of
/// 256), vectors fp32. The same model on every machine.
void write_tiny_gguf(const std::filesystem::path& path, device::DType dtype, const TinyModel& model = {});

}  // namespace lockstep::test
