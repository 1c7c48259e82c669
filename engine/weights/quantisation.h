#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/weights/source.h"

namespace lockstep::engine {

/// How the matrices of a Hugging Face folder are quantised: the `quantization_config` of its config.json.
struct Quantisation {
  enum class Method : std::uint8_t {
    kFloat8,  // X.weight in fp8 with X.weight_scale or X.weight_scale_inv: of the whole, of each row, or of each block of rows x columns
    kGptq,    // X.qweight, X.qzeros, X.scales, X.g_idx: integers packed along the columns of X
    kAwq,     // X.qweight, X.qzeros, X.scales: integers packed along the rows of X, in the order of AWQ's "gemm" version
    kMxfp4,   // X_blocks and X_scales: FP4 numbers, 32 columns with a power of two; X are the rows of all experts of a layer
  };
  Method method = Method::kFloat8;
  std::string name;    // "gptq", for messages
  std::string source;  // the file that says so, for messages

  // kGptq and kAwq
  unsigned bits = 4;           // 4 or 8; kAwq: 4
  std::size_t group_size = 0;  // columns that share scale and zero point; 0: all
  bool symmetric = false;      // every zero point is 2^(bits - 1)
  bool any_order = false;      // columns belong to groups as g_idx says (desc_act); else group by group
  bool zero_less_one = true;   // zero points are stored less one (checkpoint_format gptq; not in gptq_v2)
  // kFloat8
  std::size_t block_rows = 0;  // of a scale; 0: there are no such scales
  std::size_t block_columns = 0;
  device::DType float_dtype = device::DType::kBF16;  // what the matrices are loaded as: the type of the model's other numbers
};

/// Reads `quantization_config` from the text of a config.json; nullopt if there is none. `source` is the file, for messages.
/// @throws std::runtime_error that names file, key and value: a method or a variant that is not supported.
std::optional<Quantisation> quantisation_from_config(std::string_view config_json, const std::string& source);

/// Puts together what belongs together: from X.qweight and the others, or X.weight and its scale, the matrix X.weight, [rows, columns] like
/// any other; from X_blocks and X_scales X, [experts, rows, columns]. Nothing but shapes is looked at. What the matrices become, and why
/// that is exact: docs/weights.md.
/// @throws std::runtime_error that names file and tensor: one that is missing, there twice, or not of the shape that the others make it.
std::unique_ptr<WeightSource> unite_quantised(std::unique_ptr<WeightSource> source, const Quantisation& quantisation);

}  // namespace lockstep::engine
